"""The style of all figures: readable in grey, by colour-blind readers, on telephones, in the dark.

Colours are Okabe and Ito's, which differ in lightness too; lines also differ in width and dashes,
bars in hatching. Figures are narrow, so that their 10 point letters survive a narrow screen. An SVG
holds rules of its own for a dark page: paper, text, lines and grid change, and
bars keep their light faces and dark edges.
"""

import io
import textwrap
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from common.core.visible import visible
from common.reporting.recorded_run import capital

matplotlib.rcParams["text.parse_math"] = False  # a name may hold dollar signs
WIDTH = 4.6  # inches
LETTERS = 47  # of the title that fit into the width
NAME_LETTERS = 26  # of a name beside the axis
LEGEND_LETTERS = 60  # of a legend's row, its lines counted as 6 each
ROW = 0.17  # inches that a line of letters takes; a figure's height has room for two of each kind
# Matplotlib leaves a face of pure black out of an SVG, where no rule could find it.
BLACK, INK, PAPER, GRID = "#000000", "#010101", "#ffffff", "#e0e0e0"
BAR_EDGE = "#1a1a1a"  # of bars and their hatching: dark on a dark page too
DARK = {BLACK: "#e8e8e8", INK: "#e8e8e8", PAPER: "#16191d", GRID: "#3b4147"}
# The first line is broad and light, later ones thinner and darker: equal lines stay visible.
LINES: tuple[dict[str, Any], ...] = (
    {"color": "#b0b0b0", "linewidth": 5.0},
    {"color": "#e69f00", "linewidth": 3.0, "dashes": (4, 1.5)},
    {"color": "#0072b2", "linewidth": 1.8},
    {"color": INK, "linewidth": 1.2, "dashes": (2, 2)},
    {"color": "#cc79a7", "linewidth": 1.2, "dashes": (6, 2, 1, 2)},
    {"color": "#009e73", "linewidth": 1.0, "dashes": (1, 1)},
)
MARKS = ("o", "s", "^", "D", "v", "P")
MARK_SIZES = (16, 11, 9, 5, 4, 2.5)  # as with lines: marks of equal runs lie in one another
PHASES: dict[str, dict[str, Any]] = {  # the looks of bars
    phase: {"facecolor": face, "hatch": hatch, "edgecolor": BAR_EDGE, "linewidth": 0.5}
    for phase, face, hatch in (("data", "#f0e442", "\\\\\\\\"), ("forward", "#a6d4f0", ""),
                               ("backward", "#0072b2", ""), ("sync", "#d55e00", "////"),
                               ("update", "#ffffff", "xxxx"))}


def line(index: int) -> dict[str, Any]:
    """The look of the n-th line."""
    return LINES[index % len(LINES)]


def mark(index: int) -> dict[str, Any]:
    """The look of the n-th run's marks: each is smaller than those before, and drawn over them."""
    return {"marker": MARKS[index % len(MARKS)], "markersize": MARK_SIZES[index % len(MARK_SIZES)],
            "color": line(index)["color"], "linestyle": "none", "zorder": 5 + index,
            "clip_on": False}


def new_figure(title: str, height: float = 3.2, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, one below the other; the title says what to conclude."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_gid("paper")
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    words = textwrap.fill(capital(title), LETTERS, break_on_hyphens=False)
    _make_room(figure, words.count("\n") + 1)
    figure.suptitle(words, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.patch.set_visible(False)
        each.grid(color=GRID, linewidth=0.7)
        each.set_axisbelow(True)
    return figure, list(axes)


def _make_room(figure: Figure, rows: int) -> None:
    figure.set_figheight(figure.get_figheight() + ROW * max(0, rows - 2))


def unlisted(name: str) -> str:
    """A label that a legend leaves out, as matplotlib has it: for common/reporting/hover.py."""
    return f"_{name}"


def shortened(name: str) -> str:
    """A name beside an axis: shown as it is, and cut at its end where it would leave no room."""
    name = visible(name)
    return name if len(name) <= NAME_LETTERS else name[:NAME_LETTERS - 1] + "…"


def rows_of_ranks(axes: Axes, ranks: Sequence[tuple[str, int]]) -> list[float]:
    """Names a row for each (run's name, rank) beside the axis, from the top; their places."""
    gaps = (1.0 if one == other else 1.6 for (one, _), (other, _) in pairwise(ranks))
    places = list(accumulate(gaps, initial=1.0))
    names = [f"{visible(name)}, rank {rank}" for name, rank in ranks]
    names = [name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS:] for name in names]
    axes.set_yticks(places, names, fontsize=9)
    axes.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    return places


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Draws one legend for the figure, below the panels, with as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, LEGEND_LETTERS - 10) for label in labels]
    letters = 6 + max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(columns, LEGEND_LETTERS // letters))
    _make_room(figure, -(-len(labels) // columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False,
                  fontsize=9, handlelength=2.6)


def svg(figure: Figure) -> str:
    """The figure as SVG, letters as text; the same figure gives the same words.

    Control characters of names are shown as escapes.
    """
    for text in figure.findobj(Text):
        text.set_text(visible(text.get_text(), "\n"))
    with (matplotlib.rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}),
          warnings.catch_warnings()):
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts may have it
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    # What changes on a dark page: matplotlib writes a colour into each element's style.
    rules = [f"#paper path {{fill: {DARK[PAPER]} !important}}", f"text {{fill: {DARK[BLACK]}}}"]
    rules += [f'[style*="{what}: {light}"] {{{what}: {DARK[light]} !important}}'
              for light in (BLACK, INK, GRID) for what in ("fill", "stroke")]
    dark = "@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}"
    return buffer.getvalue().replace("</style>", f"\n{dark}</style>", 1)
