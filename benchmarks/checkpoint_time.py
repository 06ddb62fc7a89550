#!/usr/bin/env python3
"""Times the checkpoints of VGG-11: by themselves, and as a share of the hours of a training run.

    python3 benchmarks/checkpoint_time.py --data-dir ~/cifar10              # needs a quiet machine
    python3 benchmarks/checkpoint_time.py --workload digits-vgg11 --ranks 2 --iterations 12

First writes and reads one file several times. Then trains the literal Part Two (all-reduce) on this
machine with a checkpoint every few iterations, and reads in the leader's log how long each took;
the iteration after a save counts by its difference from an ordinary iteration.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import tempfile
import time
from statistics import median

import torch

from benchmarks.programs import run_to_end
from common.cluster.program import run_program
from common.core.events import read_events
from common.core.progress import Position
from common.core.provenance import conditions
from common.model.vgg11 import VGG11
from common.options.flag_parser import SentenceParser
from common.run import checkpoint_file
from common.settings.settings import Settings

EVERY = 3
DEFAULT_SECONDS = 60 * Settings.checkpoint_every.minutes


def time_files(folder: Path, runs: int) -> None:
    """Prints the size of a checkpoint, and medians of writing and of verifying and loading it."""
    model = VGG11(10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    model(torch.ones(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    writes, reads, path = [], [], folder / "Epoch_1.pt"
    for _ in range(runs):
        begun = time.perf_counter()
        checkpoint_file.write(path, checkpoint_file.pack(model, optimizer, Position(2, 0, 1), 1.0))
        written = time.perf_counter()
        checkpoint_file.read(path)
        writes.append(written - begun)
        reads.append(time.perf_counter() - written)
    print(f"{path.stat().st_size / 1e6:.1f} MB, {runs} times: write {median(writes):.2f} s "
          f"(longest {max(writes):.2f}), verify and load {median(reads):.2f} s")


def train(options: argparse.Namespace, folder: Path) -> list[dict]:
    """The leader's events of a run that saves every 3 iterations; raises DataError if it fails."""
    run_to_end([ROOT / "scripts" / "local_cluster.sh", str(options.ranks), "PartTwo", "--sync",
                "all-reduce", "--workload", options.workload, "--data-dir", options.data_dir,
                "--max-iterations", str(options.iterations), "--checkpoint-every", str(EVERY),
                "--output-dir", folder], "the run")
    return list(read_events(folder / "PartTwo" / "all-reduce" / "metrics_rank0.jsonl"))


def show_shares(events: list[dict], options: argparse.Namespace) -> None:
    """Prints what a save cost in the run, and what share of its time saving takes by default."""
    saves = [event["seconds"] for event in events if event["event"] == "checkpoint"]
    pairs = [(before["event"] == "checkpoint", event["duration"])
             for before, event in zip(events, events[1:], strict=False) if event["event"] == "step"]
    after = median(seconds for is_after, seconds in pairs if is_after)
    other = median(seconds for is_after, seconds in pairs[1:] if not is_after)
    cost = max(0.0, median(saves) + after - other)
    print(f"{options.workload} on {options.ranks} ranks, {other:.2f} s an iteration: a save takes "
          f"{median(saves):.2f} s (n {len(saves)}, longest {max(saves):.2f}), the iteration after "
          f"it {after - other:+.2f} s (ranks that need not write have begun it meanwhile)")
    for iterations in options.epochs_of:
        often = min(DEFAULT_SECONDS, iterations * other)
        print(f"  epochs of {iterations} iterations, so by default a save every {often:.0f} s: "
              f"{cost / often:.2%} of the time")


def main() -> None:
    parser = SentenceParser(description="What checkpoints of VGG-11 cost.")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()),
                        help="on the disk to be measured (default: the temporary folder)")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workload", default="cifar10-vgg11")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--iterations", type=int, default=31)
    parser.add_argument("--epochs-of", type=int, nargs="+", default=[196, 5000], metavar="N",
                        help="iterations an epoch (default: CIFAR-10's 196, and a large set's)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        time_files(Path(name), options.runs)
        show_shares(train(options, Path(name) / "run"), options)
    print(conditions())


if __name__ == "__main__":
    run_program(main)
