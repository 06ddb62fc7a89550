"""The ranks' steps of one run side by side: the global loss, and the straggler.

    python3 scripts/compare.py outputs

An iteration's loss is the mean over all samples of its global batch. The straggler is the rank with
the longest own work: data, forward and backward, which no other rank can lengthen. Where averaging
happens during backward (Part Three), backward includes waiting for other ranks, so only data and
forward count.
"""

import os
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.core.events import read_events, require_sound
from common.core.metrics import ACCURACY, Totals
from common.core.spread import half_interval

NOTABLE = 0.1  # of the other ranks' median: so much longer is a straggler's own work
NEXT_TO_NOTHING = 0.01  # of the time: gradients that take less after backward travel within it
MergedStep = dict[str, Any]
Steps = dict[tuple[int, int], dict[int, MergedStep]]
_RANKS_LOG = re.compile(r"metrics_rank(0|[1-9][0-9]*)\.jsonl")
_NODES_FOLDER = re.compile(r"node(0|[1-9][0-9]*)")


def logs_of_runs(folders: Iterable[Path]) -> list[tuple[Path, list[Path]]]:
    """Each run in these folders and below: its own folder, and the logs of its ranks.

    What scripts/ssh_cluster.sh brought back lies in a folder nodeR for each node: logs whose paths
    differ in that alone belong to one run. What a run on more ranks has left in its folder does
    not.
    """
    logs: dict[Path, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("metrics_rank*.jsonl")):
            if not _RANKS_LOG.fullmatch(path.name) or os.path.isdir(path):
                continue  # a copy of the user's, say
            require_sound(path)
            parts = [part for part in path.parent.parts if not _NODES_FOLDER.fullmatch(part)]
            logs.setdefault(Path(*parts), []).append(path)
    return [(folder, paths) for folder, every in logs.items()
            for paths in _one_and_left_over(every) if paths]


def _one_and_left_over(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The logs of one run, and those of ranks that it never had."""
    ranks = max((max(members(start)) + 1 for start in leaders_starts(paths)), default=inf)
    return ([path for path in paths if rank_of(path) < ranks],
            [path for path in paths if rank_of(path) >= ranks])


def leaders_starts(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The start events in the leaders' logs, in order: one for the run and one for each resume."""
    starts = [start for path in paths for start in read_events(path, "start")
              if "world_size" in start and members(start)[0] == rank_of(path)]
    return sorted(starts, key=lambda start: start.get("time", 0.0))


def members(start: dict[str, Any]) -> Sequence[int]:
    """The ranks that began there, the leader first; as launched, in an elastic run."""
    return start.get("members") or range(start["world_size"])


def _has_trained(rank: int, place: tuple[int, int], starts: list[dict[str, Any]]) -> bool:
    """Returns True if the rank trained the (epoch, iteration) when it was trained last."""
    return next((rank in members(start) for start in reversed(starts)
                 if tuple(start["position"][:2]) <= place), True)


def by_place(paths: Sequence[Path]) -> Steps:
    """The steps of these files, in the order trained; of several files of a rank the longest.

    After a resume on fewer ranks the lost ranks' logs still hold steps that the others have
    trained again: those are dropped.
    """
    files, starts = dict[int, list[MergedStep]](), leaders_starts(paths)
    for path in paths:
        rank = rank_of(path)
        files[rank] = max(files.get(rank, []), list(read_events(path, "step")), key=len)
    steps: Steps = {}
    for rank, events in files.items():
        for event in events:
            place = event["epoch"], event["iteration"]
            if _has_trained(rank, place, starts):
                steps.setdefault(place, {})[rank] = event
    return dict(sorted(steps.items()))


def rank_of(path: Path) -> int:
    """The rank in a file name metrics_rankR.jsonl."""
    name = _RANKS_LOG.fullmatch(path.name)
    assert name is not None
    return int(name[1])


def merge(place: tuple[int, int], ranks: dict[int, MergedStep],
          metric: str = ACCURACY.key) -> dict[str, Any]:
    """One iteration of all ranks in one record; loss and score are means over samples.

    The score is that of the `metric` with this key in the log.
    """
    samples = sum(step["samples"] for step in ranks.values())
    # exact where the log has exact sums, so that it does not depend on the number of ranks
    loss = float(sum(_sum_of_losses(step) for step in ranks.values()) / samples)
    score = sum(step[metric] * step["samples"] for step in ranks.values()) / samples
    for step in ranks.values():
        if "of_all" in step:  # of a rank that was lost there may be no line, or one too many
            whole = Totals.from_json(step["of_all"])
            (loss, score), samples = whole.means(), whole.samples
    return {
        "epoch": place[0], "iteration": place[1], "ranks": sorted(ranks), "samples": samples,
        "loss": loss, "score": score,
        "seconds": max(step["duration"] for step in ranks.values())}


def _sum_of_losses(step: MergedStep) -> Fraction | float:
    """The sum of the loss over the rank's samples; a float if it is not a number or infinite."""
    value = step.get("loss_sum", step["loss"] * step["samples"])
    return Fraction(value) if isinstance(value, str) or isfinite(value) else value


def own_work(step: MergedStep, overlaps: bool) -> float:
    """Seconds of a step in which the rank did not wait for another.

    `overlaps`, from averages_in_backward, says that a rank may wait in backward too.
    """
    seconds = step["seconds"]
    alone = seconds["data"] + seconds["forward"]
    return alone if overlaps else alone + seconds["backward"]


def timed(steps: Steps) -> list[dict[int, MergedStep]]:
    """The iterations after the first, which is a warm-up; the first if there is only one."""
    return list(steps.values())[1:] or list(steps.values())


def averages_in_backward(steps: Steps) -> bool:
    """True when gradients were sent although the sync phase took next to no time."""
    every = [step for row in timed(steps) for step in row.values()]
    return (sum(step["bytes_sent"] for step in every) > 0
            and sum(step["seconds"]["sync"] for step in every)
            < NEXT_TO_NOTHING * sum(step["duration"] for step in every))


def straggler(steps: Steps) -> str:
    """Names the straggler in a sentence, or says that none exists; excludes the first iteration.

    A straggler's own work is longer than the other ranks' median by a tenth, and beyond the spread.
    """
    overlaps = averages_in_backward(steps)
    work = [{rank: own_work(step, overlaps) for rank, step in row.items()} for row in timed(steps)]
    means = {rank: fmean(row[rank] for row in work if rank in row)
             for rank in sorted({rank for row in work for rank in row})}
    if len(means) == 1:
        return f"no straggler: rank {next(iter(means))} is alone"
    slowest = max(means, key=lambda rank: means[rank])
    rows = [row for row in work if slowest in row and len(row) > 1]
    others = [median(seconds for rank, seconds in row.items() if rank != slowest) for row in rows]
    ahead = [row[slowest] - other for row, other in zip(rows, others, strict=True)]
    if not ahead or fmean(ahead) <= max(NOTABLE * fmean(others), half_interval(ahead)):
        return ("no straggler: the slowest rank's own work is not longer than the other ranks' "
                f"median by {100 * NOTABLE:.0f} % and beyond its spread")
    times = sum(max(row, key=lambda rank: row[rank]) == slowest for row in rows)
    return (f"rank {slowest} is the straggler: {1000 * fmean(row[slowest] for row in rows):.1f} ms "
            f"of own work an iteration, the other ranks' median {1000 * fmean(others):.1f} ms; "
            f"slowest in {times} of {len(rows)} iteration{'s' * (len(rows) > 1)}")
