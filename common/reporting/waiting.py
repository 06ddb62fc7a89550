"""Who waits for whom: what each rank's own work says of its recent iterations.

    python3 scripts/compare.py outputs

No clock is compared with another. Ranks that leave one averaging together reach the next after
their own work, so a rank waits at least by how much longer the slowest rank's own work is. Where
averaging goes on during backward (Part Three) only data and forward are a rank's own.
"""

from collections import Counter
from statistics import fmean
from typing import NamedTuple

from common.reporting.merged_steps import own_work
from common.reporting.recorded_run import RecordedRun

RECENT = 20  # iterations


class Waits(NamedTuple):
    """One rank: mean seconds of its own work and of waiting, and the rank it mostly waits for.

    It waits for `rank` in `times` of `iterations`; for none where `times` is 0.
    """

    own: float
    waits: float
    rank: int
    times: int
    iterations: int


def waits(run: RecordedRun) -> dict[int, Waits]:
    """By rank, over recent iterations that all ranks' logs have; the run's first is left out.

    Empty for one rank, and where a rank's log is missing.
    """
    rows = [row for row in list(run.steps.values())[1:] if len(row) == run.ranks > 1][-RECENT:]
    work = [{rank: own_work(step, row.values()) for rank, step in row.items()} for row in rows]
    slowest = [max(row, key=lambda rank: row[rank]) for row in work]
    return {rank: _of(rank, work, slowest) for rank in range(run.ranks)} if work else {}


def _of(rank: int, work: list[dict[int, float]], slowest: list[int]) -> Waits:
    others = Counter(each for each in slowest if each != rank)
    most, times = others.most_common(1)[0] if others else (rank, 0)
    return Waits(fmean(row[rank] for row in work),
                 fmean(max(row.values()) - row[rank] for row in work), most, times, len(work))
