"""Draws the loss curves of runs on different numbers of ranks into one figure, panel by panel.

    python3 scripts/loss_curves.py --output docs/loss_curves.svg \\
        --panel "statistics of the global batch" s1/PartOne s2/PartTwo/all-reduce s4/PartThree \\
        --panel "each rank's own statistics" l1/PartOne l2/PartTwo/all-reduce l4/PartThree

A folder is a run's output folder with the metrics_rankR.jsonl of all its ranks. A curve is the mean
loss over the global batch, iteration by iteration; each is compared with the first of its panel.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.events import read_events
from common.failures import DataError, UsageError, run_program
from scripts.line_panels import Line, Panel, svg


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
    """Merges the ranks' losses, weighted by samples. Raises DataError when a rank's are missing."""
    starts = list(read_events(folder / "metrics_rank0.jsonl", "start"))
    if not starts:
        raise DataError(f"{folder} holds no run: metrics_rank0.jsonl is missing or has no start")
    ranks = starts[-1]["world_size"]
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for rank in range(ranks):
        for step in read_events(folder / f"metrics_rank{rank}.jsonl", "step"):
            total = sums[step["epoch"], step["iteration"]]
            for index, more in enumerate((step["loss"] * step["samples"], step["samples"], 1)):
                total[index] += more
    partial = [place for place, total in sums.items() if total[2] != ranks]
    if partial or not sums:
        raise DataError(f"{folder} was trained by {ranks} ranks, but not all of their "
                        "metrics_rankR.jsonl are there and whole: copy them all into it")
    return Curve(folder, ranks, {place: sums[place][0] / sums[place][1] for place in sorted(sums)})


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


def panel(title: str, curves: Sequence[Curve]) -> Panel:
    """One panel of the figure; its title says the largest gap."""
    gaps = [largest_gap(curve, curves[0])[0] for curve in curves[1:]]
    words = f"{title}: at most {max(gaps):.1e} apart" if gaps else title
    return Panel(words, [Line(curve.label, list(curve.losses.values())) for curve in curves])


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws loss curves of runs over one another.")
    parser.add_argument("--panel", nargs="+", action="append", required=True,
                        metavar=("TITLE", "FOLDER"), help="a title and the folders of its runs")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.svg")
    options = parser.parse_args()
    if any(len(words) < 2 for words in options.panel):
        raise UsageError("--panel needs a title and at least one folder")
    panels = []
    for title, *folders in options.panel:
        curves = [read_curve(Path(folder)) for folder in folders]
        print(report(title, curves))
        panels.append(panel(title, curves))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(svg(panels, "iteration", "mean loss over the global batch"))


if __name__ == "__main__":
    run_program(main)
