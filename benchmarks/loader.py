#!/usr/bin/env python3
"""The data path of one node: images a second a core, its part of a step, and seconds to start.

    python3 benchmarks/loader.py --data-dir ~/cifar10                # needs a quiet machine
    python3 benchmarks/loader.py --workload digits-vgg11 --batch-size 64 --repeats 1 --steps 5

The loader runs over whole epochs on one thread with nothing else, beside torchvision's transforms
over the same images, as the course has them. Its part is the data phase of the literal Part One.
The start is from launching Part One to its first iteration, less what importing torch alone takes
just before; the cache of decoded images is warm. Prints Markdown: medians, smallest to largest.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import subprocess
import tempfile
import time
from statistics import median

import torch

from benchmarks.programs import run_to_end
from common.cluster.process_group import one_node
from common.cluster.program import run_program
from common.core.events import read_events
from common.core.markdown import markdown_table
from common.core.provenance import conditions
from common.options.command_line import parse_command_line
from common.options.flag_parser import SentenceParser
from common.setup import create_loader, load_datasets

TRANSFORMED = 2000


def loader_speeds(options: argparse.Namespace) -> list[float]:
    """Augmented images a second of the in-memory loader on one thread, one number an epoch."""
    settings, _ = parse_command_line("PartOne", [
        "--workload", options.workload, "--data-dir", str(options.data_dir), "--batch-size",
        str(options.batch_size), "--threads", "1"])
    with one_node(settings) as node:
        loader = create_loader(settings, load_datasets(settings, node)[0], node)
    sum(len(batch.targets) for batch in loader.batches(1))  # reads the file into memory once
    speeds = []
    for epoch in range(1, options.repeats + 1):
        begun = time.perf_counter()
        images = sum(len(batch.targets) for batch in loader.batches(epoch))
        speeds.append(images / (time.perf_counter() - begun))
    return speeds


def transform_speeds(options: argparse.Namespace) -> list[float]:
    """Images a second of torchvision's transforms in this process, one number a repeat."""
    from benchmarks.peer_loops.job import Job
    from benchmarks.peer_loops.textbook import textbook_loader

    torch.set_num_threads(1)
    images = textbook_loader(Job(options.workload, options.data_dir, 1, 1)).dataset
    chosen, speeds = range(min(TRANSFORMED, len(images))), []
    for _ in range(options.repeats):
        begun = time.perf_counter()
        for index in chosen:
            images[index]
        speeds.append(len(chosen) / (time.perf_counter() - begun))
    return speeds


def train(options: argparse.Namespace) -> dict:
    """Runs Part One once: seconds to the first iteration, of steps, and of waiting for data."""
    with tempfile.TemporaryDirectory() as folder:
        before_torch = time.time()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        begun = time.time()
        run_to_end([sys.executable, "PartOne/main.py", "--workload", options.workload,
                    "--data-dir", options.data_dir, "--batch-size", str(options.batch_size),
                    "--max-iterations", str(options.steps), "--precision", options.precision,
                    "--output-dir", folder], "Part One")
        events = list(read_events(Path(folder) / "PartOne" / "metrics_rank0.jsonl"))
    start = next(event["time"] for event in events if event["event"] == "start")
    steps = [event for event in events if event["event"] == "step"]
    return {"torch": begun - before_torch, "start": start - begun, "first": steps[0]["duration"],
            "step": median(step["duration"] for step in steps[1:]),
            "data": median(step["seconds"]["data"] for step in steps[1:])}


def spread(numbers: list[float], digits: int) -> tuple[str, str]:
    """The median, and smallest to largest."""
    return (f"{median(numbers):,.{digits}f}",
            f"{min(numbers):,.{digits}f} to {max(numbers):,.{digits}f}")


def rows(results: dict, precision: str) -> list[tuple[str, str, str]]:
    """Rows of the table: a name, the median, and smallest to largest."""
    runs = results["runs"]
    shown = {
        "in-memory loader, images a second on one core": spread(results["loader"], 0),
        "torchvision's transforms, images a second on one core": spread(results["transforms"], 0),
        f"a step of Part One, {precision}, ms":
            spread([1e3 * run["step"] for run in runs], 0),
        "of it waiting for data, ms": spread([1e3 * run["data"] for run in runs], 1),
        "of it waiting for data, %": spread([100 * run["data"] / run["step"] for run in runs], 2),
        "importing torch alone, s": spread([run["torch"] for run in runs], 2),
        "launch to first iteration beyond that, s":
            spread([run["start"] - run["torch"] for run in runs], 2),
        "the first iteration beyond a later one, s":
            spread([run["first"] - run["step"] for run in runs], 2)}
    return [(name, *numbers) for name, numbers in shown.items()]


def show(results: dict, options: argparse.Namespace) -> None:
    """Prints the Markdown table, and what it was measured on."""
    table = markdown_table(("", "median", "least to most"), rows(results, options.precision))
    print(f"{table}\n\nn = {options.repeats} each, {options.workload}, batch "
          f"{options.batch_size}, {conditions()}.")


def main() -> None:
    parser = SentenceParser(description="The data path of one node.")
    parser.add_argument("--workload", default="cifar10-vgg11",
                        choices=("cifar10-vgg11", "digits-vgg11"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of each run of Part One")
    parser.add_argument("--precision", default="bf16", choices=("float32", "bf16"))
    options = parser.parse_args()
    results = {"loader": loader_speeds(options), "transforms": transform_speeds(options),
               "runs": [train(options) for _ in range(options.repeats)]}
    show(results, options)


if __name__ == "__main__":
    run_program(main)
