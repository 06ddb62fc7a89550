"""Draws how far runs' losses are from those of a first run: each iteration, and smoothed.

    python3 scripts/loss_curves.py --output docs/loss_curves.svg \\
        --run "1 rank" one/PartOne --run "4 ranks, statistics of the global batch" four/PartThree

A folder is a run's output folder with the metrics_rankR.jsonl of all its ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, ["matplotlib"])

import argparse

from common.cluster.program import run_program
from common.core.failures import UsageError
from common.reporting.loss_curves import conclusion, draw, read_curve, table


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws how far runs' losses are from the first's.")
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
