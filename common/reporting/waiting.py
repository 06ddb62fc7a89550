"""Waiting between ranks, derived from each rank's own work in its recent iterations.

    python3 scripts/compare.py outputs

No clock is compared with another. Ranks that leave one averaging together reach the next after
their own work, so a rank waits at least by how much longer the slowest rank's own work is. Where
averaging goes on during backward (Part Three) only data and forward are a rank's own.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from common.reporting.figure_style import (
    PHASES,
    legend_below,
    new_figure,
    rows_of_ranks,
)
from common.reporting.merged_steps import own_work
from common.reporting.recorded_run import RecordedRun, short
from common.reporting.run_findings import straggling

RECENT = 20  # iterations
MILLISECONDS = 1000
TITLE = "who waits for whom in an iteration"


class Waits(NamedTuple):
    """The waiting of one rank: mean seconds of own work and of waiting, and for which rank most.

    It waits for `rank` in `times` of `iterations`; for none where `times` is 0.
    """

    own: float
    waits: float
    rank: int
    times: int
    iterations: int

    @property
    def whom(self) -> str:
        """The rank it mostly waits for, and how often; "-" for none."""
        return f"rank {self.rank} ({self.times} of {self.iterations})" if self.times else "-"


def waits(run: RecordedRun) -> dict[int, Waits]:
    """Waiting by rank, over recent iterations in all ranks' logs; the run's first is excluded.

    Empty for one rank, and where a rank's log is missing.
    """
    rows = [row for row in list(run.steps.values())[1:]
            if row.keys() == set(range(run.ranks)) and run.ranks > 1][-RECENT:]
    work = [{rank: own_work(step, run.overlaps_sync) for rank, step in row.items()} for row in rows]
    slowest = [max(row, key=lambda rank: row[rank]) for row in work]
    return {rank: _of(rank, work, slowest) for rank in range(run.ranks)} if work else {}


def _of(rank: int, work: list[dict[int, float]], slowest: list[int]) -> Waits:
    others = Counter(each for each in slowest if each != rank)
    most, times = others.most_common(1)[0] if others else (rank, 0)
    return Waits(fmean(row[rank] for row in work),
                 fmean(max(row.values()) - row[rank] for row in work), most, times, len(work))


def figure(runs: Sequence[RecordedRun]) -> Figure | None:
    """A bar a rank: its own work, how long it waits at least, and for whom; in milliseconds."""
    bars = [(short(run.name), rank, wait) for run in runs for rank, wait in waits(run).items()]
    if not bars:
        return None
    drawn, (axes,) = new_figure(straggling(runs) or TITLE, 1.7 + 0.24 * len(bars))
    places = rows_of_ranks(axes, [(name, rank) for name, rank, _ in bars])
    own, waited = ([MILLISECONDS * getattr(wait, kind) for *_, wait in bars]
                   for kind in ("own", "waits"))
    axes.barh(places, own, label="own work", **PHASES["backward"])
    drawn_waits = axes.barh(places, waited, left=own, label="waits at least",
                            **PHASES["sync"])
    axes.bar_label(drawn_waits, [wait.whom for *_, wait in bars], padding=3, fontsize=9)
    axes.margins(x=0.5)
    axes.set_xlabel("ms an iteration (mean of the last ones;\n"
                    "beside a bar: whom it mostly waits for)")
    legend_below(drawn, axes)
    return drawn
