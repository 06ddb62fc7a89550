"""Figure of a run's confusion matrix: which class is taken for which.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common.reporting.figure_style import PHASES, line, new_figure, shortened
from common.reporting.figures import Runs, label

RIGHT, MISTAKEN = line(2)["color"], PHASES["sync"]["facecolor"]
DEEPEST = 0.7  # opacity of a cell: its number stays legible on light paper and on dark
LEGIBLE = 16  # classes: with more of them cells are too small for a number
LETTERS = 230  # points that all names beside an axis have together


def confusion(runs: Runs) -> Figure | None:
    """The confusion matrix of the first run with one; the title names the most frequent mistake."""
    for run in runs:
        event = run.last("evaluation")
        if names := "confusion_matrix" in event and event.get("class_names"):
            matrix = np.array(event["confusion_matrix"])
            figure, (axes,) = new_figure(f"{label(run)}: {_worst_mistake(matrix, names)}", 4.9)
            _draw_cells(axes, matrix, names)
            _name_classes(axes, names)
            return figure
    return None


def _draw_cells(axes: Axes, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draws a number in each cell but zeros. Cells let the paper through: ink stays legible."""
    axes.grid(False)
    # roots, so that rare mistakes are seen too
    shares = np.sqrt(matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True)))
    for row, column in zip(*matrix.nonzero(), strict=True):
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0,
                                 facecolor=RIGHT if row == column else MISTAKEN,
                                 alpha=DEEPEST * float(shares[row, column]),
                                 label=f"{names[row]} taken for {names[column]}: "
                                       f"{matrix[row, column]}"))
        if len(names) <= LEGIBLE:
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center",
                      fontsize=7.5)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.spines[["top", "right"]].set_visible(True)
    size = min(10, LETTERS / len(names))
    words = [shortened(name) for name in names]
    axes.set_xticks(range(len(names)), words, rotation="vertical", fontsize=size)
    axes.set_yticks(range(len(names)), words, fontsize=size)
    axes.set_xlabel("predicted class\nnumber: test images, blank: 0\n"
                    "blue: right, orange: mistaken\nthe deeper, the more of a true class")
    axes.set_ylabel("true class")


def _worst_mistake(matrix: np.ndarray, names: Sequence[str]) -> str:
    mistakes = matrix.copy()
    np.fill_diagonal(mistakes, 0)
    if not mistakes.any():
        return "no test image is mistaken"
    if (mistakes == mistakes.max()).sum() > 1:
        return f"{mistakes.sum()} of {matrix.sum()} test images are mistaken"
    truth, taken = divmod(int(mistakes.argmax()), len(matrix))
    images = int(matrix[truth].sum())
    return (f"{shortened(names[truth])} is taken for {shortened(names[taken])} most often, "
            f"{mistakes.max()} of {images} time{'s' * (images > 1)}")
