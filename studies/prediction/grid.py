"""One cell of the grid, nodes x rate, out of its ranks' turns; and the file that keeps them.

    {"made_on": {...}, "cells": [{"nodes": 4, "rate": "1gbit", "gradient_bytes": [...],
     "ready": [...], "variants": {"all-reduce": {"steps": [...], "phases": {...}, ...}}}]}

Seconds and bytes throughout; `ready` are the seconds of backward until each gradient is. Imports no
torch: what reads the file need not have it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.core.failures import DataError, UsageError
from common.core.files import read_json

COMPUTE_ONLY, DDP_DEFAULT, PART_THREE = "compute only", "DDP, torch's defaults", "Part Three"
PHASES = ("forward", "backward", "sync", "update")
Cell = dict[str, Any]
TurnRecord = dict[str, Any]
"""A rank's turn, or one step of a run: {"step": seconds, "phases": {"data": ...}}, and more."""


def variant(rounds: Sequence[Sequence[TurnRecord]]) -> dict[str, Any]:
    """A variant's record; each of `rounds` has the turns of its ranks.

    `steps` are the slowest rank's; phases are medians of the means over ranks, and loading data
    counts as forward.
    """
    phases = [[turn["phases"] | {"forward": turn["phases"]["data"] + turn["phases"]["forward"]}
               for turn in turns] for turns in rounds]
    return {"steps": [max(turn["step"] for turn in turns) for turns in rounds],
            "phases": {phase: median(fmean(each[phase] for each in turns) for turns in phases)
                       for phase in PHASES}}


def exposed(record: Cell, name: str) -> float:
    """Seconds of a step that averaging adds: its median minus the compute-only one's."""
    variants = record["variants"]
    return median(variants[name]["steps"]) - median(variants[COMPUTE_ONLY]["steps"])


def load_grid(path: Path) -> dict[str, Any]:
    """The file that a measurement wrote. Raises DataError when it is not one."""
    try:
        grid = read_json(path)
        if grid["made_on"] and all(each["variants"][COMPUTE_ONLY]["steps"]
                                   for each in grid["cells"]):
            return grid
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is no file of cells that benchmarks/sync.py or "
                    "scripts/choose_strategy.py wrote")


def open_grid(path: Path | None, made_on: dict[str, Any]) -> dict[str, Any]:
    """The grid to go on with: an empty one, or that in `path` if it was made in the same way."""
    if path is None or not path.exists():
        return {"made_on": made_on, "cells": []}
    grid = load_grid(path)
    differing = [name for name, value in made_on.items() if grid["made_on"].get(name) != value]
    if differing:
        raise UsageError(f"{path} was made with another {', '.join(differing)}: choose another "
                         "--json, or move it away")
    return grid


def save_grid(path: Path | None, grid: dict[str, Any]) -> None:
    """Replaces the file as a whole, so that an interrupted run leaves the cells it had."""
    if path is not None:
        partial = path.with_suffix(".partial")
        # Microseconds and whole bytes are enough, and make a file that one can read.
        rounded = json.loads(json.dumps(grid), parse_float=lambda text: round(float(text), 6))
        partial.write_text(json.dumps(rounded, indent=1) + "\n")
        partial.replace(path)
