#!/usr/bin/env python3
"""Seconds an iteration for every way to average gradients, at several network rates, in namespaces.

    python3 benchmarks/bandwidth_table.py --data-dir ~/cifar10        # root; needs a quiet machine
    python3 benchmarks/bandwidth_table.py --workload digits-vgg11 --iterations 3 --rates 1gbit

Each rate gets four hosts of its own (scripts/namespace_cluster.sh) that run the literal Part Two
with all strategies and Part Three; Part One runs once. Prints a Markdown table: mean and standard
deviation over the iterations after the first, each as long as its slowest rank takes. Beside it
stands the bound: the busiest node's bytes over the rate, which is what sending the gradients takes
when nothing else takes time.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
import os
import platform
import subprocess
import tempfile
from statistics import mean, stdev

from common.cluster.program import run_program
from common.core.collectives import ring_bytes
from common.core.events import read_events
from common.core.failures import PeerLost, UsageError
from common.core.settings import SYNC_NAMES

GRADIENT_BYTES = 4 * 9_231_114  # VGG-11 in float32
JOIN = ["--master-ip", "{master}", "--num-nodes", "{nodes}", "--rank", "{rank}"]
BITS = {"gbit": 1e9, "mbit": 1e6}


def rate_in_bits(rate: str) -> float:
    """Bits a second of a rate in tc's words; infinite for "none"."""
    if rate == "none":
        return float("inf")
    return float(rate[:-4]) * BITS[rate[-4:]]


def bound(run: str, nodes: int, rate: str) -> float:
    """Seconds that the gradients of one iteration need at least, when nothing overlaps.

    Gathering and scattering pass (nodes - 1) gradients into and then out of the root; a ring passes
    2*(nodes-1)/nodes of a gradient through each node, both ways at once.
    """
    if "gather" in run:
        return 2 * (nodes - 1) * GRADIENT_BYTES * 8 / rate_in_bits(rate)
    return ring_bytes(GRADIENT_BYTES, nodes) * 8 / rate_in_bits(rate)


def run_part(part: str, nodes: int, rate: str, flags: list[str], folder: Path) -> None:
    """Runs a part on `nodes` hosts. Raises PeerLost with the leader's last line when it fails."""
    cluster = [ROOT / "scripts" / "namespace_cluster.sh", "-n", str(nodes), "-r", rate, "-l",
               str(folder / f"{part}.logs")]
    join = [] if part == "PartOne" else JOIN
    command = [sys.executable, f"{part}/main.py", *join, *flags, "--output-dir", str(folder)]
    print(f"running {part} on {nodes} hosts at {rate}", file=sys.stderr, flush=True)
    done = subprocess.run([*cluster, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1]
        raise PeerLost(f"{part} at {rate} ended with exit code {done.returncode}: {last}")


def measured(folder: Path) -> dict[str, tuple[float, float, float]]:
    """By run: mean seconds an iteration, its deviation, and mean seconds of averaging in the seam.

    An iteration lasts as long as its slowest rank takes.
    """
    results = {}
    for path in sorted(folder.rglob("metrics_rank0.jsonl")):
        ranks = [list(read_events(other, "step"))[1:]
                 for other in sorted(path.parent.glob("metrics_rank*.jsonl"))]
        slowest = [max(step["duration"] for step in steps) for steps in zip(*ranks, strict=True)]
        sync = mean(step["seconds"]["sync"] for steps in ranks for step in steps)
        results[str(path.parent.relative_to(folder))] = (
            mean(slowest), stdev(slowest) if len(slowest) > 1 else 0.0, sync)
    return results


def measure(options: argparse.Namespace, flags: list[str]) -> dict[str, dict]:
    """By rate, what `measured` says of all parts; Part One under "alone"."""
    table = {}
    with tempfile.TemporaryDirectory() as name:
        for rate in options.rates:
            folder = Path(name) / rate
            run_part("PartTwo", options.nodes, rate, [*flags, "--sync", ",".join(options.sync)],
                     folder)
            run_part("PartThree", options.nodes, rate, flags, folder)
            table[rate] = measured(folder)
        run_part("PartOne", 1, "none", flags, Path(name) / "alone")
        table["alone"] = measured(Path(name) / "alone")
    return table


def show(table: dict[str, dict], options: argparse.Namespace) -> None:
    """Prints the Markdown table, and what it was measured on."""
    rates = options.rates
    print(f"| seconds an iteration | {' | '.join(f'{rate} | bound' for rate in rates)} |")
    print("|---" * (1 + 2 * len(rates)) + "|")
    for run in [f"PartTwo/{name}" for name in options.sync] + ["PartThree"]:
        cells = []
        for rate in rates:
            seconds, deviation, sync = table[rate][run]
            inside = f", {sync:.3f} in the seam" if run != "PartThree" else ""
            cells.append(f"{seconds:.3f} ± {deviation:.3f}{inside}")
            cells.append(f"{bound(run, options.nodes, rate):.3f}")
        print(f"| {run} | {' | '.join(cells)} |")
    seconds, deviation, _ = table["alone"]["PartOne"]
    print(f"\nPart One alone: {seconds:.3f} ± {deviation:.3f} s. n = {options.iterations - 1} "
          f"iterations after the first, {options.nodes} hosts of {options.threads} thread each on "
          f"one machine with {os.cpu_count()} cores, {platform.machine()}, {options.workload}, "
          f"global batch {options.batch_size}, bf16 {'on' if options.bf16 else 'off'}, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the end.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds an iteration by strategy and rate.")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit", "none"])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--workload", default="cifar10-vgg11")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1, help="of each host")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--sync", nargs="+", default=list(SYNC_NAMES), choices=SYNC_NAMES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root")
    flags = ["--workload", options.workload, "--data-dir", options.data_dir, "--batch-size",
             str(options.batch_size), "--max-iterations", str(options.iterations), "--threads",
             str(options.threads), "--precision", "bf16" if options.bf16 else "float32"]
    table = measure(options, flags)
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    show(table, options)


if __name__ == "__main__":
    run_program(main)
