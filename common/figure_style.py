"""How all figures look: readable in grey, by colour-blind readers, and on a telephone.

Colours are Okabe and Ito's, which differ in lightness too; lines also differ in width and dashes,
bars in hatching. Figures are narrow, so that their 10 point letters survive a narrow screen.
"""

import io
import textwrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 4.6  # inches
LETTERS = 47  # of the title that fit into the width
# The first line is broad and light, later ones thinner and darker: equal lines stay visible.
LINES: tuple[dict[str, Any], ...] = (
    {"color": "#b0b0b0", "linewidth": 5.0},
    {"color": "#e69f00", "linewidth": 3.0, "dashes": (4, 1.5)},
    {"color": "#0072b2", "linewidth": 1.8},
    {"color": "#000000", "linewidth": 1.2, "dashes": (2, 2)},
    {"color": "#cc79a7", "linewidth": 1.2, "dashes": (6, 2, 1, 2)},
    {"color": "#009e73", "linewidth": 1.0, "dashes": (1, 1)},
)
MARKS = ("o", "s", "^", "D", "v", "P")
PHASES: dict[str, dict[str, Any]] = {
    "data": {"facecolor": "#f0e442", "hatch": "\\\\\\\\"},
    "forward": {"facecolor": "#a6d4f0", "hatch": ""},
    "backward": {"facecolor": "#0072b2", "hatch": ""},
    "sync": {"facecolor": "#d55e00", "hatch": "////"},
    "update": {"facecolor": "#ffffff", "hatch": "xxxx"},
}


def line(index: int) -> dict[str, Any]:
    """The look of the n-th line."""
    return LINES[index % len(LINES)]


def new_figure(title: str, height: float = 3.2, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, one below the other; the title says what to conclude."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    words = textwrap.fill(title[:1].upper() + title[1:], LETTERS)
    figure.suptitle(words, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#e0e0e0", linewidth=0.7)
        each.set_axisbelow(True)
    return figure, list(axes)


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """One legend for the whole figure, outside the panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False,
                  fontsize=9, handlelength=2.6)


def svg(figure: Figure) -> str:
    """The figure as SVG, letters as text; the same figure gives the same words."""
    with matplotlib.rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
