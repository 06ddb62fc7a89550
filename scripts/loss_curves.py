"""Draws the loss curves of runs on different numbers of ranks into one figure, panel by panel.

    python3 scripts/loss_curves.py --output docs/loss_curves.svg \\
        --panel "statistics of the global batch" s1/PartOne s2/PartTwo/all-reduce s4/PartThree \\
        --panel "each rank's own statistics" l1/PartOne l2/PartTwo/all-reduce l4/PartThree

A folder is a run's output folder with the metrics_rankR.jsonl of all its ranks. A curve is the mean
loss over the global batch, iteration by iteration; each is compared with the first of its panel.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.interpreter import use_environment

use_environment(__name__, ["matplotlib"])

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from common.failures import DataError, UsageError, run_program
from common.recorded_run import find_runs


@dataclass(frozen=True)
class Curve:
    """The mean loss of each global batch of a run, by (epoch, iteration), in the order trained."""

    folder: Path
    ranks: int
    losses: dict[tuple[int, int], float]

    @property
    def label(self) -> str:
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}"


def read_curve(folder: Path) -> Curve:
    """The curve of the one run in `folder`. Raises DataError when a rank's steps are missing."""
    run, *others = find_runs([folder])
    if others:
        raise DataError(f"{folder} holds {1 + len(others)} runs: name the folder of one")
    if any(len(row["ranks"]) != run.ranks for row in run.merged):
        raise DataError(f"{folder} was trained by {run.ranks} ranks, but not all of their "
                        "metrics_rankR.jsonl are there and whole: copy them all into it")
    return Curve(folder, run.ranks,
                 {(row["epoch"], row["iteration"]): row["loss"] for row in run.merged})


def largest_gap(curve: Curve, reference: Curve) -> tuple[float, tuple[int, int]]:
    """The largest difference of any iteration, and its (epoch, iteration).

    Raises DataError when the two did not train on the same iterations.
    """
    if curve.losses.keys() != reference.losses.keys():
        raise DataError(f"{curve.folder} has {len(curve.losses)} iterations and {reference.folder} "
                        f"{len(reference.losses)}, or other ones: they cannot be compared")
    return max((abs(curve.losses[place] - reference.losses[place]), place)
               for place in reference.losses)


def report(title: str, curves: Sequence[Curve]) -> str:
    """In words: how far each curve is from the panel's first."""
    first, lines = curves[0], [title]
    lines.append(f"  {first.label}: loss {list(first.losses.values())[-1]:.4f} after "
                 f"{len(first.losses)} iterations ({first.folder})")
    for curve in curves[1:]:
        gap, (epoch, iteration) = largest_gap(curve, first)
        lines.append(f"  {curve.label}: at most {gap:.2e} from {first.label}, at epoch {epoch} "
                     f"iteration {iteration} ({curve.folder})")
    return "\n".join(lines)


def draw(panels: Sequence[tuple[str, Sequence[Curve]]], output: Path) -> None:
    """Writes the figure; a panel's title says the largest gap, and panels share their scales."""
    from common.figure_style import legend_below, line, new_figure

    figure, axes = new_figure("", 0.8 + 2.4 * len(panels), len(panels))
    for axis, (title, curves) in zip(axes, panels, strict=True):
        gaps = [largest_gap(curve, curves[0])[0] for curve in curves[1:]]
        axis.set_title(f"{title}: at most {max(gaps):.1e} apart" if gaps else title, fontsize=10)
        for index, curve in enumerate(curves):
            axis.plot(range(1, len(curve.losses) + 1), list(curve.losses.values()),
                      label=curve.label, **line(index))
        axis.sharey(axes[0])
        axis.set_ylabel("mean loss over\nthe global batch")
    axes[-1].set_xlabel("iteration")
    legend_below(figure, max(axes, key=lambda axis: len(axis.lines)))
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws loss curves of runs over one another.")
    parser.add_argument("--panel", nargs="+", action="append", required=True,
                        metavar=("TITLE", "FOLDER"), help="a title and the folders of its runs")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE",
                        help="an .svg, .png or .pdf file")
    options = parser.parse_args()
    if any(len(words) < 2 for words in options.panel):
        raise UsageError("--panel needs a title and at least one folder")
    panels = [(title, [read_curve(Path(folder)) for folder in folders])
              for title, *folders in options.panel]
    for title, curves in panels:
        print(report(title, curves))
    draw(panels, options.output)


if __name__ == "__main__":
    run_program(main)
