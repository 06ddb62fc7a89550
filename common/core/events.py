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
| failed | when the run is given up | the sentence and the exit code |
| end | when all is done | nothing |
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.core.failures import DataError
from common.core.files import parse_json, read_bytes


def read_events(path: Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of a JSONL file, of one kind or all; a line cut short by a kill is skipped.

    Raises DataError where the file is there and cannot be read.
    """
    try:
        lines = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event and kind in (None, event["event"]):
            yield event


def append_event(path: Path, kind: str, **entries: Any) -> None:
    """Adds one line to a file that nobody else is writing to; a full disk is passed over."""
    try:
        with path.open("a") as file:
            file.write(json.dumps({"event": kind, **entries}) + "\n")
    except OSError:
        pass  # called while a run is given up: the reason is on the screen already
