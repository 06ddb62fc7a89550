"""Figure of the runs' losses minus the first run's, iteration by iteration.

    python3 scripts/compare.py outputs

What rounding has made grows from step to step until it is as large as the loss is noisy; what is
equal to the bit stays at 0.
"""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from common.reporting.figure_style import legend_below, line, new_figure
from common.reporting.figures import Runs, label
from common.reporting.recorded_run import RecordedRun, short
from common.settings.causes import at_most


def loss_differences(runs: Runs) -> Figure | None:
    """Absolute differences on a logarithmic scale that ends in 0; None without a common iteration.
    """
    first, *others = runs
    curves = [(run, gaps) for run in others if (gaps := _gaps(first, run))]
    if not curves:
        return None
    figure, (axes,) = new_figure(_title(first, curves), 3.6)
    positive = [gap for _, gaps in curves for gap in gaps.values() if gap]
    axes.set_yscale("symlog", linthresh=min(positive, default=1e-9))
    for index, (run, gaps) in enumerate(curves, 1):
        axes.plot(list(gaps), list(gaps.values()), label=label(run), **line(index))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{gap:.0e}" if gap else "0"))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("difference of the loss")
    axes.set_xlabel(f"iteration (against {label(first)})")
    legend_below(figure, axes, columns=2)
    return figure


def _gaps(first: RecordedRun, other: RecordedRun) -> dict[int, float]:
    """Gaps by the iteration's number, from 1, in the order in which the first run trained."""
    mine, theirs = ({(row["epoch"], row["iteration"]): row["loss"] for row in run.merged}
                    for run in (first, other))
    return {number: abs(theirs[place] - loss) for number, (place, loss) in enumerate(
        mine.items(), 1) if place in theirs}


def _title(first: RecordedRun, curves: list[tuple[RecordedRun, dict[int, float]]]) -> str:
    largest = {short(run.name): max(gaps.values()) for run, gaps in curves}
    if not any(largest.values()):
        return f"all common losses are equal to {short(first.name)}'s, bit for bit"
    return f"losses differ from {short(first.name)}'s by at most " + ", ".join(
        f"{at_most(gap)} in {name}" for name, gap in largest.items())
