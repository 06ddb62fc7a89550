"""The JSON lines of a run: one object a line, its kind under "event". Imports next to nothing.

    python3 -c "from common.core.events import *; print(*read_events(Path('metrics_rank0.jsonl')))"

| event | written | holds |
|---|---|---|
| start | at every start or resume | settings, position, what it runs on, wall time, how to resume |
| note | when something is worth keeping | its text |
| step | every iteration | loss, accuracy, samples, bytes sent, seconds in all and by phase |
| checkpoint | when one is saved | its file, position, seconds (none if a kill left it unsaid) |
| validation | at an epoch's end | mean loss and accuracy over the validation set |
| epoch | at an epoch's end | mean loss and accuracy over all ranks, seconds |
| memory | at an epoch's end | the most bytes held at once so far |
| operators | after a traced window | the top operators |
| evaluation | after the last epoch | test loss and accuracy, confusion matrix |
| regrouped | when a run goes on with other ranks | who was lost, who came, why, seconds stalled |
| failed | when the run is given up | the sentence and the exit code |
| end | when all is done | nothing |
"""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from common.core.failures import DataError
from common.core.files import parse_json, read_bytes
from common.core.progress import PHASES

MOST = 1 << 53  # of a number in a log: as many whole numbers a float can tell apart
Check = Callable[[Any], bool]


def read_events(path: Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of a JSONL file, of one kind or all; lines that hold none are skipped.

    A kill may have cut the last one short. Raises DataError where the file is there and cannot be
    read.
    """
    return (event for event in _events(path) if event and kind in (None, event["event"]))


def require_sound(path: Path) -> None:
    """Raises DataError, with its number, for a line but the last that no run has written."""
    *lines, _ = [*_events(path), None]
    if lines[:-1].count(None):
        raise DataError(f"{path} is damaged: its line {lines.index(None) + 1} is not what a run "
                        "writes; leave the line out, or the run")


def _events(path: Path) -> Iterator[dict[str, Any] | None]:
    """Each line's event; None for a line that holds none, or one without what its kind holds."""
    try:
        lines = read_bytes(path).splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            event = parse_json(line)
        except ValueError:
            event = None
        yield event if isinstance(event, dict) and _is_whole(event) else None


def _whole(least: int) -> Check:
    return lambda value: type(value) is int and least <= value <= MOST


def _number(value: Any) -> bool:
    """Returns True for a float, infinity and NaN included, or an int of at most MOST in size."""
    return type(value) is float or type(value) is int and abs(value) <= MOST


def _duration(value: Any) -> bool:
    return _number(value) and 0 <= value <= MOST


def _is_a(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _every(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _phases(value: Any) -> bool:
    return isinstance(value, dict) and all(_duration(value.get(phase)) for phase in PHASES)


def _sums(value: Any) -> bool:
    """Returns True for what Totals.as_json writes: exact sums over one sample or more."""
    try:
        _, _, samples = map(Fraction, value)
    except (TypeError, ValueError, ZeroDivisionError):
        return False
    return samples >= 1 and samples.denominator == 1


# What an event of a kind must hold, and what it may hold: later versions wrote more than earlier.
_MUST: dict[str, dict[str, Check]] = {
    "step": {"epoch": _whole(1), "iteration": _whole(0), "loss": _number, "samples": _whole(1),
             "duration": _duration, "seconds": _phases, "bytes_sent": _whole(0)},
    "epoch": {"epoch": _whole(1), "loss": _number},
    "evaluation": {"test_loss": _number},
    "regrouped": {"lost": _every(_whole(0)), "came": _every(_whole(0)), "seconds": _duration},
    "failed": {"why": _is_a(str), "exit_code": _whole(0)},
    "operators": {"rows": _every(_is_a(dict))}}
_MAY: dict[str, dict[str, Check]] = {
    "start": {"settings": _is_a(dict), "world_size": _whole(1), "position": _every(_whole(0)),
              "time": _duration, "iterations_per_epoch": _whole(1), "host": _is_a(str),
              "cores": _whole(1), "processor": _is_a(str), "ran_on": _is_a(dict),
              "members": _every(_whole(0)), "metric": _is_a(dict), "resume": _is_a(str),
              "data": _is_a(str)},
    "step": {"accuracy": _number, "of_all": _sums},
    "evaluation": {"class_names": _every(_is_a(str)), "weights": _is_a(str),
                   "confusion_matrix": _every(_every(_whole(0)))}}


def _is_whole(event: dict[str, Any]) -> bool:
    kind = event.get("event")
    if not isinstance(kind, str):
        return False
    return (all(check(event.get(name)) for name, check in _MUST.get(kind, {}).items())
            and all(check(event[name]) for name, check in _MAY.get(kind, {}).items()
                    if name in event))


def append_event(path: Path, kind: str, **entries: Any) -> None:
    """Adds one line to a file that nobody else is writing to; a full disk is passed over."""
    try:
        with path.open("a") as file:
            file.write(json.dumps({"event": kind, **entries}) + "\n")
    except OSError:
        pass  # called while a run is given up: the reason is on the screen already
