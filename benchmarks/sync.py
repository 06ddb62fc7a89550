#!/usr/bin/env python3
"""Seconds a step for every way to average gradients: by nodes and rate, in network namespaces.

    python3 benchmarks/sync.py                                    # root; needs a quiet machine
    python3 benchmarks/sync.py --rates 1gbit --nodes 4 --precision bf16 --json sync.json

In each cell (nodes x rate) all variants take turns in one process group, so that ratios within a
cell hold on a noisy machine: VGG-11, global batch 256, random images. A step counts as long as its
slowest rank takes. Prints Markdown: the median step, its smallest and largest, what of it is
exposed communication (step minus the compute-only step), averaging alone, and a rank's bytes by
our count beside the kernel's.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.failures import PeerLost, UsageError, run_program

WORKER = "benchmarks/sync_benchmark/worker.py"
COMPUTE_ONLY = "compute only"


def run_cell(nodes: int, rate: str, options: argparse.Namespace) -> list[dict]:
    """What each rank measured. Raises PeerLost with the last line when a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--rounds", str(options.rounds), "--steps", str(options.steps), "--output", folder,
                 "--precision", options.precision, "--threads", str(options.threads),
                 "--timeout", "300"]
        if options.variants:
            flags += ["--variants", json.dumps(options.variants)]
        print(f"running {nodes} nodes at {rate}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [ROOT / "scripts" / "namespace_cluster.sh", "-n", str(nodes), "-r", rate,
             sys.executable, WORKER, "--master-ip", "{master}", "--num-nodes", "{nodes}",
             "--rank", "{rank}", *flags], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1]
            raise PeerLost(f"{nodes} nodes at {rate} ended with {done.returncode}: {last}")
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text())
                for rank in range(nodes)]


def slowest_steps(ranks: list[dict], name: str) -> list[float]:
    """Seconds of each step of a variant, as long as its slowest rank took."""
    by_rank = [[step["step"] for found in rank[name] for step in found["steps"]] for rank in ranks]
    return [max(steps) for steps in zip(*by_rank, strict=True)]


def alone(ranks: list[dict], name: str) -> float | None:
    """Median seconds of averaging when nothing is computed; None where that cannot be taken."""
    rounds = [[found.get("alone") for found in rank[name]] for rank in ranks]
    if None in rounds[0]:
        return None
    return median(max(each) for each in zip(*rounds, strict=True))


def megabytes(ranks: list[dict], name: str) -> tuple[float, float]:
    """A step's megabytes out of the busiest rank: by our count, and by the kernel's."""
    return max((median(found["counted"] for found in rank[name]) / 1e6,
                median(found["wire"] for found in rank[name]) / 1e6) for rank in ranks)


def rows(ranks: list[dict]) -> dict[str, dict]:
    """By variant, the numbers of the table."""
    compute = median(slowest_steps(ranks, COMPUTE_ONLY))
    found = {}
    for name in ranks[0]:
        steps, (counted, wire) = slowest_steps(ranks, name), megabytes(ranks, name)
        found[name] = {"step": median(steps), "least": min(steps), "most": max(steps),
                       "exposed": median(steps) - compute, "alone": alone(ranks, name),
                       "counted": counted, "wire": wire, "n": len(steps)}
    return found


def show(nodes: int, rate: str, table: dict[str, dict]) -> None:
    """Prints one cell as a Markdown table."""
    print(f"\n{nodes} nodes, {rate}, n = {table[COMPUTE_ONLY]['n']} steps each\n")
    print("| variant | step, s | least to most | exposed, s | alone, s | MB out, counted | by the "
          "kernel |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, row in table.items():
        by_itself = "" if row["alone"] is None else f"{row['alone']:.3f}"
        print(f"| {name} | {row['step']:.3f} | {row['least']:.3f} to {row['most']:.3f} | "
              f"{row['exposed']:.3f} | {by_itself} | {row['counted']:.1f} | {row['wire']:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds a step by strategy, nodes and rate.")
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "300mbit", "1gbit", "none"])
    parser.add_argument("--rounds", type=int, default=3, help="each gives every variant a turn")
    parser.add_argument("--steps", type=int, default=2, help="of one turn")
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root")
    if options.variants and COMPUTE_ONLY not in options.variants:
        raise UsageError(f"--variants needs {COMPUTE_ONLY!r}, which the others are compared with")
    cells = {}
    for nodes in options.nodes:
        for rate in options.rates:
            table = cells[f"{nodes} nodes, {rate}"] = rows(run_cell(nodes, rate, options))
            show(nodes, rate, table)
    print(f"\n{platform.machine()}, {os.cpu_count()} cores for all nodes, {options.precision}, "
          f"{options.threads} thread(s) a node, Python {platform.python_version()}")
    if options.json:
        options.json.write_text(json.dumps(cells, indent=2) + "\n")


if __name__ == "__main__":
    run_program(main)
