"""Differences between two folders of one run: whole checkpoints, logs, metrics and reports.

    for line in differences(undisturbed, resumed): print(line)

Times and memory are ignored. A resumed run repeats some lines, and says that it goes on: repeated
lines of a log count once, and so do starts and notes among the metrics.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from common.run import checkpoint_file

# With what is said of a duration that began at a resume.
DURATION = re.compile(r"Duration: \d+\.\d+ seconds( since the resume at iteration \d+)?")
TOLD_AGAIN = ("start", "note")
RESUMED = "bit-exact: "  # in the line on where a run goes on
LEFT_OUT = ("failed", "memory")  # a failure belongs to a disturbed run alone
Entries = dict[str, Any]


def differences(one: Path, other: Path) -> list[str]:
    """A line for each entry that differs, or that one of the folders alone has."""
    here, there = entries_of_run(one), entries_of_run(other)
    return [f"{name}: {_short(here.get(name))} and {_short(there.get(name))}"
            for name in here | there
            if name not in here or name not in there or here[name] != there[name]]


def entries_of_run(folder: Path) -> Entries:
    """All that a run has left, flat: a comparable value by file and place in it."""
    found: Entries = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()
                       and not path.name.startswith(".lock_")):  # which holds the process's number
        found |= {f"{path.relative_to(folder)}: {name}": value for name, value in _read(path)}
    return found


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".pt":
        yield from _flat(checkpoint_file.read(path))
    elif path.suffix == ".json":
        yield from _flat(json.loads(path.read_text()))
    elif path.suffix == ".jsonl":
        yield from _metrics(path)
    else:
        yield "text", _lines(path.read_text())


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested containers, without those that are times."""
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield f"{name} has", len(value)
        for key, each in pairs:
            if not _is_time(str(key)):
                yield from _flat(each, f"{name}.{key}")
    elif isinstance(value, torch.Tensor):
        bits = value.reshape(-1).contiguous().view(torch.uint8)
        yield name, (value.dtype, value.shape, bits.numpy().tobytes())
    else:
        yield name, repr(value)  # not a number is equal to itself


def _is_time(key: str) -> bool:
    return "second" in key or key in ("time", "duration")


def _events(path: Path) -> Iterator[Entries]:
    """Each line's, sound or not; a kill may have cut one short."""
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _metrics(path: Path) -> Iterator[tuple[str, Any]]:
    """Events by kind and number, without a resumed run's start position and its note on it."""
    events: dict[str, list[Entries]] = {}
    for event in _events(path):
        kind = event.pop("event")
        if kind in LEFT_OUT or RESUMED in event.get("text", ""):
            continue
        if kind == "start":
            event.pop("position")
            event.pop("resume", None)  # a command, with another port
        entries = dict(_flat(event))
        if kind not in TOLD_AGAIN or entries not in events.get(kind, []):
            events.setdefault(kind, []).append(entries)
    for kind, every in events.items():
        for number, entries in enumerate(every):
            yield from ((f"{kind} {number}{name}", value) for name, value in entries.items())


def _lines(text: str) -> list[str]:
    """Each line once, without durations."""
    lines = (DURATION.sub("", line) for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if RESUMED not in line))


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]} {tuple(value[1])}"
    return str(value)[:200]
