#!/usr/bin/env python3
"""Seconds until every other rank has ended, by kind of fault: median, 95th percentile, longest.

    python3 benchmarks/detection.py --runs 20
    python3 benchmarks/detection.py --runs 10 --json docs/results/detection.json

Four ranks of Part Two on this machine train a small model. The clock runs from the fault until the
last of the other ranks has ended with exit code 75 and a sentence that names the lost rank.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import random
import signal
import socket
import subprocess
import tempfile
import time
from statistics import median, quantiles

from benchmarks.records import write_record
from common.cluster.program import run_program
from common.core.events import read_events
from common.core.failures import DataError, PeerLost
from common.core.markdown import markdown_table
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser

RANKS, PATIENCE = 4, 60.0
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "leader killed": signal.SIGKILL,
          "leader stopped": signal.SIGSTOP}


def start_ranks(folder: Path) -> list[subprocess.Popen]:
    """Starts the literal Part Two on all ranks, each with its output in rankR.txt."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [subprocess.Popen(
        [sys.executable, "PartTwo/main.py", "--master-ip", "127.0.0.1", "--num-nodes", str(RANKS),
         "--rank", str(rank), "--master-port", str(port), "--sync", "all-reduce", "--workload",
         "spiral-mlp", "--epochs", "100000", "--output-dir", folder], cwd=ROOT,
        stdout=(folder / f"rank{rank}.txt").open("w"), stderr=subprocess.STDOUT)
        for rank in range(RANKS)]


def wait_for_steps(folder: Path, steps: int) -> None:
    """Waits until the leader has logged so many steps. Raises DataError if it does not."""
    deadline = time.monotonic() + PATIENCE
    while len(list(read_events(folder / "PartTwo/all-reduce/metrics_rank0.jsonl", "step"))) < steps:
        if time.monotonic() > deadline:
            raise DataError("no training: " + (folder / "rank0.txt").read_text())
        time.sleep(0.01)


def seconds_until_all_ended(fault: str, folder: Path, chance: random.Random) -> float:
    """Runs once with one fault. Raises DataError if a rank does not name the lost one."""
    lost = 0 if fault.startswith("leader") else chance.randrange(1, RANKS)
    ranks = start_ranks(folder)
    others = [rank for rank in range(RANKS) if rank != lost]
    try:
        wait_for_steps(folder, chance.randint(4, 100))
        ranks[lost].send_signal(FAULTS[fault])
        begun = time.monotonic()
        codes = [ranks[rank].wait(PATIENCE) for rank in others]
        seconds = time.monotonic() - begun
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for rank, code in zip(others, codes, strict=True):
        text = (folder / f"rank{rank}.txt").read_text()
        if code != PeerLost.exit_code or f"rank {lost} (" not in text:
            raise DataError(f"rank {rank} ended with {code} and does not name rank {lost}: {text}")
    return seconds


def main() -> None:
    parser = SentenceParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=20, help="of each fault (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    runs, chance, rows, faults = options.runs, random.Random(0), [], {}
    for fault in FAULTS:
        seconds = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as name:
                seconds.append(seconds_until_all_ended(fault, Path(name), chance))
        p95 = quantiles(seconds, n=20, method="inclusive")[-1] if runs > 1 else seconds[0]
        faults[fault] = {"median": median(seconds), "p95": p95, "longest": max(seconds),
                         "seconds": seconds}
        rows.append((fault, *(f"{each:.1f} s" for each in (median(seconds), p95, max(seconds)))))
    print(f"{markdown_table(('fault', 'p50', 'p95', 'longest'), rows)}\n\n{RANKS} ranks, {runs} "
          f"runs each; {conditions()}")
    if options.json:
        write_record(options.json, {"n": runs, "ranks": RANKS, "faults": faults})


if __name__ == "__main__":
    run_program(main)
