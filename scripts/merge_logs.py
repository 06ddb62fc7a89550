#!/usr/bin/env python3
"""Lays the ranks' logs of a run side by side: the global loss, the skew, and the straggler.

    python3 scripts/merge_logs.py outputs/PartTwo/all-reduce [--every 20]

Reads metrics_rank*.jsonl in the folder and below (what scripts/ssh_cluster.sh brought back lies in
a folder for each node): a table for each run. What is merged how: common/reporting/merged_steps.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, [])

from typing import Any

from common.cluster.program import run_program
from common.core.failures import DataError, reading
from common.core.metrics import Metric
from common.core.progress import PHASES
from common.options.flag_parser import SentenceParser
from common.reporting.merged_steps import (
    Steps,
    averages_in_backward,
    by_place,
    leaders_starts,
    logs_of_runs,
    merge,
    metric_of,
    ranks_at,
    straggler,
)


def show(steps: Steps, starts: list[dict[str, Any]], every: int, metric: Metric) -> None:
    """Prints a table, one line for each `every` iterations, and the sentence on the straggler.

    `starts` tell on how many ranks each iteration was trained.
    """
    ranks = sorted({rank for row in steps.values() for rank in row})
    print(f"{len(steps)} iteration{'s' * (len(steps) > 1)} of rank{'s' * (len(ranks) > 1)} "
          f"{', '.join(map(str, ranks))}; skew is slowest minus fastest rank, in milliseconds")
    overlaps = averages_in_backward(steps)
    width = max(8, len(metric.name))
    print(f"epoch  iteration  samples    loss  {metric.name:>{width}}  seconds  "
          + "  ".join(f"{phase:>8}" for phase in PHASES) + "  slowest")
    for index, (place, row) in enumerate(steps.items()):
        if len(row) < min(len(ranks), ranks_at(place, starts)):
            print(f"{place[0]:>5}  {place[1]:>9}  only rank{'s' * (len(row) > 1)} "
                  f"{', '.join(map(str, sorted(row)))}")
        elif index % every == 0:
            one = merge(place, row, metric.key, overlaps)
            print(f"{place[0]:>5}  {place[1]:>9}  {one['samples']:>7}  {one['loss']:>6.3f}  "
                  f"{one['score']:>{width}.3f}  {one['seconds']:>7.3f}  "
                  + "  ".join(f"{1000 * one['skew'][phase]:>8.1f}" for phase in PHASES)
                  + f"  {one['slowest']:>7}")
    print(straggler(steps))


def main() -> None:
    parser = SentenceParser(description="Merges the logs of all ranks of a run.")
    parser.add_argument("folder", type=Path, help="where the ranks' metrics_rankR.jsonl lie")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="lines to show")
    options = parser.parse_args()
    with reading(str(options.folder)):
        _show_all(options.folder, max(1, options.every))


def _show_all(folder_of_runs: Path, every: int) -> None:
    logs = [(folder, paths, by_place(paths)) for folder, paths in logs_of_runs([folder_of_runs])]
    runs = [(folder, paths, steps) for folder, paths, steps in logs if steps]
    if not runs:
        raise DataError(f"{folder_of_runs} holds no steps in metrics_rank*.jsonl files")
    for number, (folder, paths, steps) in enumerate(runs):
        if len(runs) > 1:
            print("\n" * (number > 0) + f"{folder}, run {number + 1} of {len(runs)}")
        show(steps, leaders_starts(paths), every, metric_of(paths))


if __name__ == "__main__":
    run_program(main)
