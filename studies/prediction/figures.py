"""The model beside what was measured, and the simulation up to thousands of ranks, as figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from common.core.failures import writing
from common.reporting.figure_style import MARKS, legend_below, line, new_figure, svg
from studies.prediction.calibration import Check
from studies.prediction.simulation import AVERAGING, Cluster, Work, efficiency
from studies.prediction.tables import errors_in_words

STEPS = 3  # of each simulated cluster
SPREAD = 0.1  # of a rank's time: a standard deviation of a tenth


def accuracy(steps: Sequence[Check]) -> Figure:
    """Predicted against measured steps of unseen cells: a mark a step, its shape the nodes."""
    figure, (axes,) = new_figure(errors_in_words(steps).split(";")[0].split(" (")[0], 3.9)
    ends = [min(each.measured for each in steps) / 1.2, max(each.measured for each in steps) * 1.2]
    axes.plot(ends, ends, color="#888888", linewidth=1)
    axes.fill_between(ends, [0.85 * end for end in ends], [1.15 * end for end in ends],
                      color="#e0e0e0", label="within 15 %")
    for index, nodes in enumerate(sorted({each.nodes for each in steps})):
        own = [each for each in steps if each.nodes == nodes]
        axes.plot([each.measured for each in own], [each.predicted.seconds for each in own],
                  linestyle="none", marker=MARKS[index], markersize=5, fillstyle="none",
                  color=line(index + 1)["color"], label=f"{nodes} nodes")
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("measured seconds a step")
    axes.set_ylabel("predicted seconds a step")
    legend_below(figure, axes, columns=2)
    return figure


def scaling(clusters: Sequence[Cluster], work: Work) -> Figure:
    """Efficiency by number of ranks, without stragglers and with: a line a strategy."""
    uneven = replace(work, spread=SPREAD)
    last = efficiency("hierarchical, overlapped", clusters[-1], work)
    waiting = efficiency("hierarchical, overlapped", clusters[-1], uneven, STEPS)
    figure, panels = new_figure(
        f"{clusters[-1].ranks} ranks keep {100 * last:.0f} % of their speed with overlapped rings "
        f"in nodes and racks, and {100 * waiting:.0f} % when ranks vary by {100 * SPREAD:.0f} %",
        5.4, panels=2)
    for axes, each, words in zip(panels, (work, uneven), ("even", "uneven"), strict=True):
        for index, name in enumerate(AVERAGING):
            axes.plot([cluster.ranks for cluster in clusters],
                      [100 * efficiency(name, cluster, each, STEPS if each.spread else 1)
                       for cluster in clusters], label=name, marker=MARKS[index], markersize=4,
                      **line(index))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set_ylim(0, 105)
        axes.set_ylabel(f"efficiency in %,\n{words} ranks")
    panels[1].set_xlabel("ranks")
    legend_below(figure, panels[0], columns=2)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG. Raises UsageError if it cannot be written."""
    with writing(path):
        path.write_text(svg(figure))
    print(f"\nto look at: {path}")
