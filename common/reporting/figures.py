"""Figures of runs, from their JSON lines alone: without torch.

    python3 scripts/compare.py outputs        # draws them all into one page

Each takes the runs to compare and returns a figure, or None where the runs have nothing to show.
Titles are conclusions (common/reporting/run_findings.py), looks are in figure_style.py.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.reporting import run_findings as findings
from common.reporting.figure_style import (
    BAR_EDGE,
    PHASES,
    legend_below,
    line,
    mark,
    new_figure,
    rows_of_ranks,
    unlisted,
)
from common.reporting.recorded_run import RecordedRun, short

Runs = Sequence[RecordedRun]
MILLISECONDS = 1000


def label(run: RecordedRun) -> str:
    """A run's name in figures and tables."""
    return f"{short(run.name)}, {run.ranks} rank{'s' * (run.ranks > 1)}"


def learning(runs: Runs) -> Figure | None:
    """Loss and metric over the global batch, each iteration; epoch means and test as marks."""
    figure, (loss, score) = new_figure(findings.learning(runs), 4.8, panels=2)
    for index, run in enumerate(runs):
        places = range(1, len(run.merged) + 1)
        loss.plot(places, [row["loss"] for row in run.merged], label=label(run), **line(index))
        factor = 100 if run.metric.is_share else 1
        score.plot(places, [factor * row["score"] for row in run.merged],
                   label=unlisted(label(run)), **line(index))
        _mark_epochs(run, index, loss, score)
        for at, _ in run.changes:  # other ranks go on from here
            for panel in (loss, score):
                panel.axvline(at + 0.5, linewidth=0.8, dashes=(1, 2), color=line(index)["color"])
    for panel in (loss, score):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    loss.set_ylabel("loss")
    score.set_ylabel(" and ".join(dict.fromkeys(
        run.metric.name + " in %" * run.metric.is_share for run in runs)))
    score.set_xlabel("iteration (lines: a global batch; filled marks, in its middle:\n"
                        "an epoch's training mean; rings, at the end: the test set)")
    legend_below(figure, loss, columns=2)
    return figure


def _mark_epochs(run: RecordedRun, index: int, loss: Axes, score: Axes) -> None:
    """Marks epoch means in the middle of their iterations, and the test set's at the end."""
    epochs = [place[0] for place in run.steps]
    means = [(fmean(at for at, epoch in enumerate(epochs, 1) if epoch == event["epoch"]), event)
             for event in run.events if event["event"] == "epoch" and event["epoch"] in epochs]
    for panel, factor, name in ((loss, 1, "loss"),
                                (score, 100 if run.metric.is_share else 1, run.metric.key)):
        if means:  # without a point, an unclipped line leaves the panels no room
            panel.plot([at for at, _ in means], [factor * event[name] for _, event in means],
                       markeredgewidth=0.6, markeredgecolor=BAR_EDGE, **mark(index))
        if test := run.last("evaluation"):
            panel.plot([len(epochs)], [factor * test[f"test_{name}"]], fillstyle="none",
                       markeredgewidth=1.6, **mark(index))


def phases(runs: Runs) -> Figure | None:
    """Bars of each rank's time by phase, in milliseconds."""
    bars = [(run, rank, seconds) for run in findings.timed(runs)
            for rank, seconds in run.phases.items()]
    if not bars:
        return None
    figure, (axes,) = new_figure(findings.where_time_goes(runs), 1.7 + 0.24 * len(bars))
    places = rows_of_ranks(axes, [(short(run.name), rank) for run, rank, _ in bars])
    start = [0.0] * len(bars)
    for phase, look in PHASES.items():
        widths = [MILLISECONDS * seconds[phase] for _, _, seconds in bars]
        axes.barh(places, widths, left=start, label=phase, **look)
        start = [before + width for before, width in zip(start, widths, strict=True)]
    axes.set_xlabel("ms an iteration (mean, the first excluded)")
    legend_below(figure, axes)
    return figure


def speed_up(runs: Runs) -> Figure | None:
    """Speed against nodes, beside the ideal line; one rank of Part One is 1."""
    base, many = findings.base_of(runs), [run for run in findings.timed(runs) if run.ranks > 1]
    title = findings.speed_up(runs)
    if base is None or not title:
        return None
    figure, (axes,) = new_figure(title, 3.4)
    most = max(run.ranks for run in many)
    axes.plot([1, most], [1, most], color="#888888", linewidth=1, dashes=(1, 2), label="ideal")
    kinds = list(dict.fromkeys(_kind(run) for run in many))
    for index, kind in enumerate(kinds):
        points = sorted((run.ranks, (base.mean or 0) / (run.mean or 1)) for run in many
                        if _kind(run) == kind)
        axes.plot(*zip((1, 1.0), *points, strict=True), label=kind,
                  **{**line(index + 1), **mark(index + 1), "linestyle": "-"})
    axes.set_xticks(sorted({1, *(run.ranks for run in many)}))
    axes.set_xlabel("nodes (ranks)")
    axes.set_ylabel("speed, times one rank's")
    axes.set_ylim(bottom=0)
    legend_below(figure, axes, columns=2)
    return figure


def _kind(run: RecordedRun) -> str:
    """A run's strategy: runs that share it, on several numbers of ranks, make one line."""
    return short(run.name).rsplit("/", 1)[-1]


FIGURES: dict[str, Callable[[Runs], Figure | None]] = {
    "learning": learning, "phases": phases, "speed-up": speed_up}
