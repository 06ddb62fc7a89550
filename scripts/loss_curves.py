"""Draws how far runs' losses are from those of a first run: each iteration, and smoothed.

    python3 scripts/loss_curves.py --output docs/loss_curves.svg \\
        --run "1 rank" one/PartOne --run "4 ranks, statistics of the global batch" four/PartThree

A folder is a run's output folder with the metrics_rankR.jsonl of all its ranks. A loss is the mean
over the global batch. Single iterations differ by roundings once these have grown; whether a run
learns something else shows in the mean over many iterations, beside its 95 % interval.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, ["matplotlib"])

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from common.cluster.program import run_program
from common.core.failures import DataError, UsageError, writing
from common.core.markdown import markdown_table
from common.core.spread import half_interval
from common.options.flag_parser import SentenceParser
from common.reporting.figure_style import legend_below, line, new_figure, svg
from common.reporting.recorded_run import find_runs

SMOOTH = 25  # iterations, of which a smoothed curve is the mean
LAST = 50  # iterations, over which the runs are compared
LEAST = 1e-9  # of the scale, where equal losses are drawn too


@dataclass(frozen=True)
class Curve:
    """The mean loss of each global batch of a run, by (epoch, iteration), in the order trained."""

    label: str
    folder: Path
    losses: dict[tuple[int, int], float]

    def minus(self, reference: "Curve") -> list[float]:
        """Each iteration's difference. Raises DataError when the two trained on other ones."""
        if self.losses.keys() != reference.losses.keys():
            raise DataError(f"{self.folder} has {len(self.losses)} iterations and "
                            f"{reference.folder} {len(reference.losses)}, or other ones: they "
                            "cannot be compared")
        return [loss - reference.losses[place] for place, loss in self.losses.items()]


def read_curve(label: str, folder: Path) -> Curve:
    """The curve of the one run in `folder`. Raises DataError when a rank's steps are missing."""
    run, *others = find_runs([folder])
    if others:
        raise DataError(f"{folder} holds {1 + len(others)} runs: name the folder of one")
    if any(len(row["ranks"]) != run.ranks for row in run.merged):
        raise DataError(f"{folder} was trained by {run.ranks} ranks, but not all of their "
                        "metrics_rankR.jsonl are there and whole: copy them all into it")
    return Curve(label, folder, {(row["epoch"], row["iteration"]): row["loss"]
                                 for row in run.merged})


def smoothed(values: Sequence[float]) -> list[float]:
    """Means of SMOOTH values that follow one another: one less than that shorter than `values`."""
    width = min(SMOOTH, len(values))
    return [fmean(values[start:start + width]) for start in range(len(values) - width + 1)]


def table(curves: Sequence[Curve]) -> str:
    """Markdown: how far each curve is from the first, early and late."""
    length = len(curves[0].losses)
    gaps = {curve.label: curve.minus(curves[0]) for curve in curves[1:]}
    rows = [(label, f"{abs(each[0]):.1e}", f"{max(map(abs, each[:10])):.1e}",
             f"{fmean(each[-LAST:]):+.3f} ± {half_interval(each[-LAST:]):.3f}")
            for label, each in gaps.items()]
    return markdown_table((f"loss against {curves[0].label}", "first iteration",
                           f"first {min(10, length)}, at most",
                           f"mean of the last {min(LAST, length)}"), rows)


def conclusion(curves: Sequence[Curve]) -> str:
    """Which curves lie apart from the first at their end, beyond the spread of the iterations."""
    late = {curve.label: curve.minus(curves[0])[-LAST:] for curve in curves[1:]}
    apart = [f"{label} ({fmean(gaps):+.3f})" for label, gaps in late.items()
             if abs(fmean(gaps)) > half_interval(gaps)]
    count = min(LAST, len(curves[0].losses))
    place = f"in the mean of the last {count} iterations" if count > 1 else "in its only iteration"
    return (f"apart from {curves[0].label} {place}: {', '.join(apart)}" if apart
            else f"no run lies apart from {curves[0].label} {place}, beyond the spread")


def draw(curves: Sequence[Curve], output: Path) -> None:
    """Writes the figure: smoothed losses, then each iteration's and the smoothed difference."""
    figure, (loss, each, mean) = new_figure(conclusion(curves), 7.2, panels=3)
    for index, curve in enumerate(curves):
        values, gaps = list(curve.losses.values()), curve.minus(curves[0])
        ends = range(len(values) - len(smoothed(values)) + 1, len(values) + 1)
        loss.plot(ends, smoothed(values), label=curve.label, **line(index))
        if index:
            each.plot(range(1, len(gaps) + 1), [max(LEAST, abs(gap)) for gap in gaps],
                      **line(index))
            mean.plot(ends, smoothed(gaps), **line(index))
    each.set_yscale("log")
    width = min(SMOOTH, len(curves[0].losses))
    loss.set_ylabel(f"loss, mean of\n{width} iteration{'s' * (width > 1)}")
    each.set_ylabel("difference,\neach iteration")
    mean.set_ylabel(f"difference, mean\nof {width} iteration{'s' * (width > 1)}")
    mean.set_xlabel("iteration")
    loss.sharex(each)
    mean.sharex(each)
    legend_below(figure, loss, columns=2)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(svg(figure))


def main() -> None:
    parser = SentenceParser(description="Draws how far runs' losses are from the first's.")
    parser.add_argument("--run", nargs=2, action="append", required=True,
                        metavar=("LABEL", "FOLDER"), help="a name and the folder of a run; the "
                        "others are compared with the first")
    parser.add_argument("--output", type=Path, required=True, metavar="SVG")
    options = parser.parse_args()
    if len(options.run) < 2:
        raise UsageError("there is nothing to compare: give --run at least twice")
    curves = [read_curve(label, Path(folder)) for label, folder in options.run]
    print(table(curves))
    print(f"\n{conclusion(curves)}")
    draw(curves, options.output)


if __name__ == "__main__":
    run_program(main)
