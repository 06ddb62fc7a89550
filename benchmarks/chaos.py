#!/usr/bin/env python3
"""Kills ranks of an elastic run at random, starts them again, and compares what is learned.

    python3 benchmarks/chaos.py                                  # digits, two minutes
    python3 benchmarks/chaos.py --every 15 --minutes 60 --json chaos.json

First Part One trains by itself, with as many virtual nodes. Then so many ranks train on this
machine, on a budget of steps that takes about --minutes; every --every seconds one of them is
killed, any of them, rank 0 included, and started again two seconds later. Ends with status 1 unless
both runs end with the same digest. The rest of the command line is the run's.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.programs import run_to_end
from benchmarks.records import write_record
from common.cluster.program import run_program
from common.core.events import read_events
from common.core.failures import DataError
from common.core.provenance import conditions

AWAY_SECONDS = 2.0
SMALL = ["--workload", "digits-vgg11", "--threads", "1"]


class Ranks:
    """The ranks of one run on this machine. Each start of one appends to its own file of output."""

    def __init__(self, options: argparse.Namespace, flags: Sequence[str], folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder = folder
        self._command = [sys.executable, f"{options.part}/main.py", "--master-ip", "127.0.0.1",
                         "--num-nodes", f"{options.least}:{options.ranks}", "--master-port",
                         str(port), "--output-dir", str(folder), *flags]
        self.running = {rank: self._start(rank) for rank in range(options.ranks)}

    def _start(self, rank: int) -> subprocess.Popen:
        with (self._folder / f"rank{rank}.out").open("a") as output:
            return subprocess.Popen([*self._command, "--rank", str(rank)], cwd=ROOT, stdout=output,
                                    stderr=subprocess.STDOUT)

    def kill(self, rank: int) -> None:
        self.running[rank].kill()
        self.running[rank].wait()

    def start_again(self) -> None:
        """Starts the ranks that have ended otherwise than well, as scripts/supervise.sh would."""
        for rank, code in enumerate(self.codes()):
            if code:
                self.running[rank] = self._start(rank)

    def codes(self) -> list[int | None]:
        """The exit codes; None of those that run."""
        return [each.poll() for each in self.running.values()]

    def end(self) -> None:
        for rank in self.running:
            self.kill(rank)


def disturb(options: argparse.Namespace, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """Trains while ranks are killed; returns how often, the seconds in all, and the exit codes."""
    ranks, choose, kills = Ranks(options, flags, folder), random.Random(options.seed), 0
    begun = time.monotonic()
    try:
        while not events(folder, "step") and None in ranks.codes():
            time.sleep(0.2)
        started = time.monotonic()
        while 0 not in ranks.codes() and None in ranks.codes():
            victim, due = choose.randrange(options.ranks), time.monotonic() + options.every
            while time.monotonic() < due and 0 not in ranks.codes():
                time.sleep(0.1)
            if 0 in ranks.codes() or kills == options.kills:
                break
            ranks.kill(victim)
            kills += 1
            time.sleep(AWAY_SECONDS)
            ranks.start_again()
        while None in ranks.codes():
            time.sleep(0.1)
        return {"kills": kills, "seconds": time.monotonic() - started,
                "seconds_to_start": started - begun, "codes": ranks.codes()}
    finally:
        ranks.end()


def events(folder: Path, kind: str) -> list[list[dict[str, Any]]]:
    """The events of a kind in the log of each rank that has any."""
    return [found for path in sorted(folder.rglob("metrics_rank*.jsonl"))
            if (found := list(read_events(path, kind)))]


def digest_in(folder: Path) -> str:
    """The digest that a finished run in `folder` has left. Raises DataError where there is none."""
    for path in folder.rglob("summary.json"):
        return json.loads(path.read_text())["weights"]
    raise DataError(f"no run has ended in {folder}")


def stalls(folder: Path) -> dict[str, list[float]]:
    """Seconds from the first sign of a change until the next step could begin.

    By what changed, over all ranks that went on.
    """
    seconds: dict[str, list[float]] = {"lost": [], "came": []}
    for log in events(folder, "regrouped"):
        for event in log:
            if not (event["came"] and len(event["came"]) > 1):  # else it came itself
                seconds["lost" if event["lost"] else "came"].append(event["seconds"])
    return seconds


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This program's options, and the run's."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", default="PartTwo", choices=("PartTwo", "PartThree"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--least", type=int, default=2, metavar="MIN")
    parser.add_argument("--every", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--kills", type=int, help="at most so many (default: until the end)")
    parser.add_argument("--steps", type=int, default=300, help="of the run")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of ranks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options, flags = parser.parse_known_args(arguments)
    flags = flags or list(SMALL)
    if options.part == "PartTwo" and "--sync" not in flags:
        flags += ["--sync", "all-reduce"]
    return options, [*flags, "--epochs", "1000", "--max-iterations", str(options.steps)]


def main() -> None:
    options, flags = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        alone, disturbed = Path(folder, "alone"), Path(folder, "disturbed")
        disturbed.mkdir()
        run_to_end([sys.executable, "PartOne/main.py", "--virtual-nodes", str(options.ranks),
                    "--output-dir", alone, *_without_sync(flags)], "the undisturbed run")
        found = disturb(options, flags, disturbed)
        digests = [digest_in(alone), digest_in(disturbed)]
        seconds = stalls(disturbed)
    waits = sum(sum(each) for each in seconds.values()) / options.ranks
    print(f"{found['kills']} kills in {found['seconds']:.0f} s; useful time "
          f"{1 - waits / found['seconds']:.1%}; exit codes {found['codes']}")
    for what, each in seconds.items():
        if each:
            print(f"stall after a rank {what}: median {median(each):.2f} s, longest "
                  f"{max(each):.2f} s, n = {len(each)}")
    print(f"digests: {digests[0]} undisturbed, {digests[1]} disturbed. {conditions()}")
    if options.json:
        write_record(options.json, {**found, "stalls": seconds, "digests": digests})
    sys.exit(digests[0] != digests[1])


def _without_sync(flags: Sequence[str]) -> list[str]:
    at = flags.index("--sync") if "--sync" in flags else len(flags)
    return [*flags[:at], *flags[at + 2:]]


if __name__ == "__main__":
    run_program(main)
