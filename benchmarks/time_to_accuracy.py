#!/usr/bin/env python3
"""Training time and accuracy of a recipe over several seeds. Flags after -- go to Part One.

    python3 benchmarks/time_to_accuracy.py --data-dir ~/cifar10 -- --recipe record --precision bf16
    python3 benchmarks/time_to_accuracy.py --seeds 1 --data-dir ~/cifar10 -- --recipe record \
        --precision bf16 --validation 0.1 --learning-rate 0.2

With --validation the figures are those of the held-out images: choose by them. Without it
they are the test set's, which is to be looked at once, when all is chosen. Training counts all
iterations, data and all, and checkpoints; what it leaves out, the start and the evaluations, is in
the time from launch to report. Prints Markdown.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
import tempfile
import time
from statistics import fmean, stdev

from benchmarks.programs import run_to_end
from common.cluster.program import run_program
from common.core.events import read_events
from common.core.markdown import markdown_table
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser

COLUMNS = {"training": "training, s", "launched": "launch to report, s", "images": "images/s",
           "accuracy": "accuracy, %", "mirrored": "with mirror images, %"}


def train(seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Runs Part One once: seconds and accuracies, by the names in COLUMNS."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run_to_end([sys.executable, "PartOne/main.py", "--data-dir", options.data_dir,
                    "--output-dir", folder, "--tta", *options.flags, "--seed", str(seed)],
                   f"seed {seed}")
        launched = time.perf_counter() - begun
        run = Path(folder) / "PartOne"
        values = figures(list(read_events(run / "metrics_rank0.jsonl")),
                         json.loads((run / "summary.json").read_text()))
    return values | {"launched": launched}


def figures(events: list[dict], summary: dict) -> dict[str, float]:
    """A run's training seconds, speed and accuracies: on held-out images if any, else the test's.

    With held-out images the test set's figures are not even read.
    """
    training = sum(event["seconds"] for event in events if event["event"] in ("epoch",
                                                                              "checkpoint"))
    images = sum(event["samples"] for event in events if event["event"] == "epoch")
    validated = [event for event in events if event["event"] == "validation"]
    values = {"training": training, "images": images / training}
    if validated:
        return values | {"accuracy": 100 * validated[-1]["accuracy"],
                         "mirrored": 100 * validated[-1]["mirrored_accuracy"]}
    return values | {"accuracy": 100 * summary["test_accuracy"],
                     "mirrored": 100 * summary["mirrored_test_accuracy"]}


def table(runs: dict[int, dict[str, float]]) -> str:
    """A row a seed, and their mean and standard deviation."""
    rows = [(str(seed), *(f"{run[name]:.2f}" for name in COLUMNS)) for seed, run in runs.items()]
    columns = [[run[name] for run in runs.values()] for name in COLUMNS]
    cells = [f"{fmean(each):.2f}" + (f" ± {stdev(each):.2f}" if len(each) > 1 else "")
             for each in columns]
    return markdown_table(("seed", *COLUMNS.values()), [*rows, ("mean", *cells)])


def main() -> None:
    parser = SentenceParser(description="Training time and accuracy over several seeds.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("flags", nargs="*", help="for PartOne/main.py, after --")
    options = parser.parse_args()
    runs = {}
    for seed in options.seeds:
        print(f"seed {seed}", file=sys.stderr, flush=True)
        runs[seed] = train(seed, options)
    print(f"{table(runs)}\n\nPart One {' '.join(options.flags)}; {conditions()}.")


if __name__ == "__main__":
    run_program(main)
