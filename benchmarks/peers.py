#!/usr/bin/env python3
"""Images a second of this project beside the course's loop and Lightning.

    .venv/bin/pip install -r requirements-bench.txt
    python3 benchmarks/peers.py --data-dir ~/cifar10                 # needs a quiet machine
    python3 benchmarks/peers.py --rows course-float32 lightning-bf16 --json peers.json

Every contestant trains the same VGG-11 on the same images with the same batch, each turn in a
process of its own, and in every round each has a turn; the first two steps are not counted. Prints
Markdown: medians over rounds, smallest to largest; the speed is the median of each round's own
ratio.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from statistics import median

from benchmarks.programs import run_to_end
from benchmarks.records import write_record
from common.cluster.program import run_program
from common.core.failures import UsageError
from common.core.markdown import markdown_table
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser

WORKER = "benchmarks/peer_loops/worker.py"
COURSE = "course-float32"
ROWS = (COURSE, *(f"{name}-{precision}" for name in ("lightning", "lightning_compiled", "project")
                  for precision in ("float32", "bf16")), "project_native-float32")


def that_can_run(rows: list[str], device: str) -> list[str]:
    """The rows that can run here; says so where Lightning, or an instruction for bf16, is missing.

    Without one, a step of torch's own in bf16 takes minutes.
    """
    from common.arithmetic import torch_private  # --help answers without torch

    if device == "cpu" and not torch_private.multiplies_bf16():
        print("this processor has no instructions for bf16, so Lightning's rows in bf16 are "
              "dropped", file=sys.stderr, flush=True)
        rows = [row for row in rows if not (row.startswith("lightning") and row.endswith("bf16"))]
    if importlib.util.find_spec("lightning"):
        return rows
    print(f"lightning is not installed, so its rows are dropped: {sys.executable} "
          "-m pip install -r requirements-bench.txt", file=sys.stderr, flush=True)
    return [row for row in rows if not row.startswith("lightning")]


def take_turn(row: str, options: argparse.Namespace) -> dict:
    """Returns a worker's measurements. Raises DataError with its last line if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "turn.json"
        run_to_end([sys.executable, WORKER, "--row", row, "--workload", options.workload,
                    "--data-dir", options.data_dir, "--batch-size", str(options.batch_size),
                    "--steps", str(options.steps), "--device", options.device, "--output",
                    output], f"the turn of {row}")
        return json.loads(output.read_text())


def measure(options: argparse.Namespace) -> list[dict[str, dict]]:
    """The measurements of every row, one dictionary a round."""
    rounds = []
    for number in range(options.rounds):
        turns = {}
        for row in that_can_run(options.rows, options.device):
            print(f"round {number + 1} of {options.rounds}: {row}", file=sys.stderr, flush=True)
            turns[row] = take_turn(row, options)
        rounds.append(turns)
    return rounds


def images_per_second(turn: dict, batch_size: int) -> float:
    """Images a second over all timed steps of a turn."""
    return batch_size * len(turn["seconds"]) / sum(turn["seconds"])


def summarise(rounds: list[dict[str, dict]], batch_size: int) -> dict[str, dict]:
    """The numbers of the table by row; a row's speed is against the course in the same round."""
    table = {}
    for row in rounds[0]:
        speeds = [images_per_second(turns[row], batch_size) for turns in rounds]
        table[row] = {"images_per_second": median(speeds), "least": min(speeds),
                      "most": max(speeds), "speed": None, "settings": rounds[0][row]["settings"]}
        if COURSE in rounds[0]:
            table[row]["speed"] = median(
                speed / images_per_second(turns[COURSE], batch_size)
                for speed, turns in zip(speeds, rounds, strict=True))
    return table


def over_best_peer(rounds: list[dict[str, dict]], batch_size: int) -> dict[str, dict]:
    """This project's speed over the best peer's, by precision: the median of the rounds' ratios."""
    ratios = {}
    for precision in ("float32", "bf16"):
        speeds = {row: [images_per_second(turns[row], batch_size) for turns in rounds]
                  for row in rounds[0] if row.endswith(precision) and "native" not in row}
        ours = speeds.pop(f"project-{precision}", None)
        if ours and speeds:
            best = max(speeds, key=lambda row: median(speeds[row]))
            ratios[precision] = {"best_peer": best, "times": median(
                mine / its for mine, its in zip(ours, speeds[best], strict=True))}
    return ratios


def markdown(table: dict[str, dict]) -> str:
    """The table, a row a contestant."""
    rows = [(name, row["settings"], f"{row['images_per_second']:.0f}",
             f"{row['least']:.0f} to {row['most']:.0f}",
             "" if row["speed"] is None else f"{row['speed']:.2f}") for name, row in table.items()]
    return markdown_table(("", "settings", "images a second", "least to most", "speed"), rows,
                          texts=2)


def explanation(rounds: list[dict[str, dict]], options: argparse.Namespace) -> str:
    """Describes the measurement and its conditions, in a few sentences."""
    threads = next(iter(rounds[0].values()))["threads"]
    peer = f", lightning {version('lightning')}" if importlib.util.find_spec("lightning") else ""
    return (f"{options.rounds} rounds of {options.steps} steps, batch {options.batch_size}, "
            f"{options.workload}, {threads} threads. Speed is the ratio to {COURSE}. "
            f"{conditions()}{peer}.")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises UsageError."""
    parser = SentenceParser(description="This project beside its peers, on one node.")
    parser.add_argument("--workload", default="cifar10-vgg11", choices=("cifar10-vgg11",
                                                                        "digits-vgg11"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="timed, of each turn")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW",
                        choices=ROWS, help=f"of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.steps, options.batch_size) < 1:
        raise UsageError("--rounds, --steps and --batch-size count from 1")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    rounds = measure(options)
    table = summarise(rounds, options.batch_size)
    print(f"{markdown(table)}\n\n{explanation(rounds, options)}")
    if options.json:
        write_record(options.json, {"n": options.rounds, "steps": options.steps,
                                    "batch_size": options.batch_size, "rows": table,
                                    "over_best_peer": over_best_peer(rounds, options.batch_size),
                                    "rounds": rounds})


if __name__ == "__main__":
    run_program(main)
