"""The ranks' steps of one run side by side: the global loss, the skew, and who is slow.

    python3 scripts/merge_logs.py outputs/PartTwo/all-reduce

An iteration's loss is the mean over all samples of its global batch; its skew in a phase is the
slowest rank's seconds minus the fastest's. The straggler is the rank with the longest own work:
data, forward and backward, which no other rank can lengthen. Where averaging happens inside
backward (Part Three), backward includes waiting for the others, so only data and forward count.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any

from common.core.events import read_events
from common.core.failures import DataError
from common.core.progress import PHASES

NOTABLE = 1.1  # own work this many times the median rank's makes a straggler
Step = dict[str, Any]
Steps = dict[tuple[int, int], dict[int, Step]]


def read_steps(folder: Path) -> Steps:
    """The steps of all ranks whose logs lie in `folder` or below, by (epoch, iteration), by rank.

    Raises DataError when there are none.
    """
    steps = by_place(sorted(folder.rglob("metrics_rank*.jsonl")))
    if not steps:
        raise DataError(f"{folder} holds no steps in metrics_rank*.jsonl files")
    return steps


def by_place(paths: Iterable[Path]) -> Steps:
    """The steps of these files, in the order trained; of several files of a rank the longest."""
    files: dict[int, list[Step]] = {}
    for path in paths:
        rank = rank_of(path)
        files[rank] = max(files.get(rank, []), list(read_events(path, "step")), key=len)
    steps: Steps = {}
    for rank, events in files.items():
        for event in events:
            steps.setdefault((event["epoch"], event["iteration"]), {})[rank] = event
    return dict(sorted(steps.items()))


def rank_of(path: Path) -> int:
    """The R of metrics_rankR.jsonl."""
    return int(re.sub(r"\D", "", path.stem))


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
