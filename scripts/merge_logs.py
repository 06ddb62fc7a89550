#!/usr/bin/env python3
"""Lays the ranks' logs of one run side by side: the global loss, the skew, and who is slow.

    python3 scripts/merge_logs.py outputs/PartTwo/all-reduce [--json merged.jsonl] [--every 20]

Reads metrics_rank*.jsonl in the folder and below (what scripts/ssh_cluster.sh brought back lies in
a folder for each node). An iteration's loss is the mean over all samples of its global batch; its
skew in a phase is the slowest rank's seconds minus the fastest's.

The straggler is the rank with the longest own work: data, forward and backward, which no other
rank can lengthen. Where averaging happens inside backward (Part Three), backward includes waiting
for the others, so only data and forward count.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.failures import DataError, run_program
from common.phase_timer import PHASES
from common.run_log import read_events

NOTABLE = 1.1  # own work this many times the median rank's makes a straggler
Step = dict[str, Any]
Steps = dict[tuple[int, int], dict[int, Step]]


def read_steps(folder: Path) -> Steps:
    """The steps of all ranks, by (epoch, iteration), then by rank.

    Of several files of one rank the longest counts. Raises DataError when there are none.
    """
    files: dict[int, list[Step]] = {}
    for path in sorted(folder.rglob("metrics_rank*.jsonl")):
        rank = int(re.sub(r"\D", "", path.stem))
        files[rank] = max(files.get(rank, []), list(read_events(path, "step")), key=len)
    steps: Steps = {}
    for rank, events in files.items():
        for event in events:
            steps.setdefault((event["epoch"], event["iteration"]), {})[rank] = event
    if not steps:
        raise DataError(f"{folder} holds no steps in metrics_rank*.jsonl files")
    return dict(sorted(steps.items()))


def merge(place: tuple[int, int], ranks: dict[int, Step]) -> dict[str, Any]:
    """One iteration of all ranks in one record; loss and accuracy are means over samples."""
    samples = sum(step["samples"] for step in ranks.values())
    return {
        "epoch": place[0], "iteration": place[1], "ranks": sorted(ranks), "samples": samples,
        "loss": sum(step["loss"] * step["samples"] for step in ranks.values()) / samples,
        "accuracy": sum(step["accuracy"] * step["samples"] for step in ranks.values()) / samples,
        "seconds": max(step["duration"] for step in ranks.values()),
        "skew": {phase: spread(step["seconds"][phase] for step in ranks.values())
                 for phase in PHASES},
        "slowest": max(ranks, key=lambda rank: own_work(ranks[rank], ranks.values())),
    }


def spread(values: Iterable[float]) -> float:
    """The largest minus the smallest."""
    values = list(values)
    return max(values) - min(values)


def own_work(step: Step, all_ranks: Iterable[Step]) -> float:
    """Seconds of a step in which the rank waited for nobody."""
    seconds = step["seconds"]
    alone = seconds["data"] + seconds["forward"]
    return alone if averages_in_backward(all_ranks) else alone + seconds["backward"]


def averages_in_backward(ranks: Iterable[Step]) -> bool:
    """True when gradients were sent although next to no time was spent in the seam."""
    return all(step["bytes_sent"] and step["seconds"]["sync"] < 0.01 * step["duration"]
               for step in ranks)


def straggler(steps: Steps) -> str:
    """One sentence on who is slow; the first iteration, which warms everything up, left out."""
    timed = list(steps.values())[1:] or list(steps.values())
    work = {rank: mean(own_work(ranks[rank], ranks.values()) for ranks in timed if rank in ranks)
            for rank in sorted({rank for ranks in timed for rank in ranks})}
    rank = max(work, key=lambda r: work[r])
    others = median(seconds for other, seconds in work.items() if other != rank) \
        if len(work) > 1 else work[rank]
    if work[rank] < NOTABLE * others:
        return f"no straggler: the ranks' own work differs by less than {100 * NOTABLE - 100:.0f} %"
    times = sum(max(ranks, key=lambda r: own_work(ranks[r], ranks.values())) == rank
                for ranks in timed)
    return (f"rank {rank} is the straggler: {1000 * work[rank]:.1f} ms of own work an iteration, "
            f"the median of the others {1000 * others:.1f} ms; slowest in {times} of "
            f"{len(timed)} iterations")


def show(steps: Steps, every: int) -> None:
    """Prints a table, one line for each `every` iterations, and the sentence on the straggler."""
    ranks = sorted({rank for row in steps.values() for rank in row})
    print(f"{len(steps)} iterations of ranks {', '.join(map(str, ranks))}; skew is slowest minus "
          "fastest rank, in milliseconds")
    print("epoch  iteration  samples    loss  accuracy  seconds  "
          + "  ".join(f"{phase:>8}" for phase in PHASES) + "  slowest")
    for index, (place, row) in enumerate(steps.items()):
        if len(row) < len(ranks):
            print(f"{place[0]:>5}  {place[1]:>9}  only ranks {', '.join(map(str, sorted(row)))}")
        elif index % every == 0:
            one = merge(place, row)
            print(f"{place[0]:>5}  {place[1]:>9}  {one['samples']:>7}  {one['loss']:>6.3f}  "
                  f"{one['accuracy']:>8.3f}  {one['seconds']:>7.3f}  "
                  + "  ".join(f"{1000 * one['skew'][phase]:>8.1f}" for phase in PHASES)
                  + f"  {one['slowest']:>7}")
    print(straggler(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description="Merges the logs of all ranks of one run.")
    parser.add_argument("folder", type=Path, help="where the ranks' metrics_rankR.jsonl lie")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON line each")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="lines to show")
    options = parser.parse_args()
    steps = read_steps(options.folder)
    if options.json:
        options.json.write_text("".join(json.dumps(merge(place, ranks)) + "\n"
                                        for place, ranks in steps.items()))
    show(steps, max(1, options.every))


if __name__ == "__main__":
    run_program(main)
