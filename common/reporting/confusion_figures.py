"""Figures of confusion: one run's confusion matrix, and the cells in which other runs differ.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common.reporting.figure_style import PHASES, line, new_figure, shortened
from common.reporting.figures import Runs, label
from common.reporting.recorded_run import RecordedRun

MORE, FEWER = line(2)["color"], PHASES["sync"]["facecolor"]
DEEPEST = 0.7  # opacity of a cell: its number stays legible on light paper and on dark
LEGIBLE = 16  # classes: with more of them cells are too small for a number
LETTERS = 230  # points that all names beside an axis have together


def confusion(runs: Runs) -> Figure | None:
    """The confusion matrix of the first run with one; the title names the most frequent mistake."""
    for run in filter(_classes, runs):
        matrix, names = _matrix(run), _classes(run)
        # roots, so that rare mistakes are seen too
        shares = np.sqrt(matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True)))
        return _drawn(f"{label(run)}: {_worst_mistake(matrix, names)}", matrix,
                      np.where(np.eye(len(names)), shares, -shares), names,
                      "number: test images, blank: 0\nblue: right, orange: mistaken\n"
                      "the deeper, the more of a true class", "d")
    return None


def differences(runs: Runs) -> Figure | None:
    """The largest difference of all other runs from the first, in each cell.

    None if no run differs from the first, or none has the same classes.
    """
    tested = [run for run in runs if _classes(run)]
    others = [run for run in tested[1:] if _classes(run) == _classes(tested[0])]
    if not others:
        return None
    gaps = np.array([_matrix(run) - _matrix(tested[0]) for run in others])
    largest = np.take_along_axis(gaps, np.abs(gaps).argmax(axis=0)[None], axis=0)[0]
    if not largest.any():
        return None
    who = f"the other {len(others)} runs differ" if others[1:] else f"{label(others[0])} differs"
    most = int(np.abs(largest).max())
    return _drawn(f"{who} from {label(tested[0])} by at most {most} test image{'s' * (most > 1)} "
                  "in a cell", largest, largest / most, _classes(tested[0]),
                  "number: largest difference, blank: 0\nblue: more, orange: fewer", "+d")


def _classes(run: RecordedRun) -> list[str]:
    """The names of the test set's classes; none without a confusion matrix."""
    event = run.last("evaluation")
    return list(event.get("class_names") or ()) if "confusion_matrix" in event else []


def _matrix(run: RecordedRun) -> np.ndarray:
    return np.array(run.last("evaluation")["confusion_matrix"])


def _drawn(title: str, matrix: np.ndarray, shades: np.ndarray, names: Sequence[str], legend: str,
           form: str) -> Figure:
    """Draws a number in each cell but zeros; `shades` from -1 (FEWER's colour) to 1 (MORE's).

    Cells let the paper through, so that ink stays legible.
    """
    figure, (axes,) = new_figure(title, 4.9)
    axes.grid(False)
    for row, column in zip(*matrix.nonzero(), strict=True):
        shade = float(shades[row, column])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0,
                                 facecolor=MORE if shade > 0 else FEWER, alpha=DEEPEST * abs(shade),
                                 label=f"{names[row]} taken for {names[column]}: "
                                       f"{matrix[row, column]:{form}}"))
        if len(names) <= LEGIBLE:
            axes.text(column, row, f"{matrix[row, column]:{form}}", ha="center", va="center",
                      fontsize=7.5)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.spines[["top", "right"]].set_visible(True)
    size = min(10, LETTERS / len(names))
    words = [shortened(name) for name in names]
    axes.set_xticks(range(len(names)), words, rotation="vertical", fontsize=size)
    axes.set_yticks(range(len(names)), words, fontsize=size)
    axes.set_xlabel(f"predicted class\n{legend}")
    axes.set_ylabel("true class")
    return figure


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
