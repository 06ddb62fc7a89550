"""One cell of the grid, nodes x rate, out of what its ranks measured; and the file that keeps them.

    {"made_on": {...}, "cells": [{"nodes": 4, "rate": "1gbit", "gradient_bytes": [...],
     "ready": [...], "variants": {"all-reduce": {"steps": [...], "phases": {...}, ...}}}]}

Seconds and bytes throughout. Imports no torch: what reads the file need not have it.
"""

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.core.failures import DataError, UsageError
from common.core.files import read_json

COMPUTE_ONLY, DDP_DEFAULT, PART_THREE = "compute only", "DDP, torch's defaults", "Part Three"
PHASES = ("forward", "backward", "sync", "update")
BYTES = ("counted", "wire", "payload_sent", "payload_received")
Cell = dict[str, Any]


def cell(nodes: int, rate: str, ranks: list[dict]) -> Cell:
    """The record of a cell; `ranks` are the records that its ranks wrote."""
    taken = [step for rank in ranks for turn in rank["rounds"][COMPUTE_ONLY]
             for step in turn["steps"]]
    rounds = [rank["rounds"] for rank in ranks]
    return {"nodes": nodes, "rate": rate, "gradient_bytes": ranks[0]["gradient_bytes"],
            "ready": [median(each) for each in zip(*(step["ready"] for step in taken),
                                                   strict=True)],
            "variants": {name: _variant([rank[name] for rank in rounds]) for name in rounds[0]}}


def _variant(ranks: list[list[dict]]) -> dict[str, Any]:
    """A variant's record: `steps` of the slowest rank; phases are medians, means over ranks."""
    by_rank = [[step for turn in rounds for step in turn["steps"]] for rounds in ranks]
    return {
        "steps": [max(step["step"] for step in steps) for steps in zip(*by_rank, strict=True)],
        "phases": {phase: fmean(median(step[phase] for step in steps) for steps in by_rank)
                   for phase in PHASES},
        "processor": fmean(median(step["user"] + step["system"] for step in steps)
                           for steps in by_rank),
        "bytes": [{name: median(turn[name] for turn in rounds) for name in BYTES}
                  for rounds in ranks],
    }


def exposed(record: Cell, name: str) -> float:
    """Seconds of a step that averaging adds: its median minus the compute-only one's."""
    variants = record["variants"]
    return median(variants[name]["steps"]) - median(variants[COMPUTE_ONLY]["steps"])


def load_grid(path: Path) -> dict[str, Any]:
    """The file that benchmarks/sync.py wrote. Raises DataError when it is not one."""
    try:
        grid = read_json(path)
        if grid["made_on"] and all(each["variants"][COMPUTE_ONLY]["steps"]
                                   for each in grid["cells"]):
            return grid
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is no grid of cells that benchmarks/sync.py wrote")


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
