#!/usr/bin/env python3
"""Loses ranks of an elastic run at random, brings them back, and compares what is learned.

    python3 benchmarks/chaos.py                                  # digits, two minutes
    python3 benchmarks/chaos.py --every 15 --steps 3000 --json chaos.json
    sudo python3 benchmarks/chaos.py --faults killed,stopped,cut,frozen --every 45 --data-dir DIR

First Part One trains by itself, with as many virtual nodes. Then so many ranks train on this
machine; every --every seconds one of them is lost, any of them, rank 0 included, and comes back:

| fault | what happens | comes back after |
|---|---|---|
| killed | SIGKILL | 2 s, by the same command |
| stopped | SIGSTOP | 15 s, by SIGCONT |
| cut | its host's link is down | 15 s; by the same command, if it has ended |
| frozen | both: nothing of the machine runs or answers | 15 s |
| parted | it and another one do not reach each other | 25 s |
| halved | the network is cut between some hosts, it among them, and the others | 25 s |

For the last four each rank has a host of its own, a network namespace (needs root). Ends with
status 1 unless both runs end with the same digest. The rest of the command line is the run's.
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
import signal
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
from common.core.failures import DataError, UsageError
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser

SECONDS_AWAY = {"killed": 2.0, "stopped": 15.0, "cut": 15.0, "frozen": 15.0, "parted": 25.0,
                "halved": 25.0}
LATE_SECONDS = 20.0
LINKS = {"cut", "frozen", "parted", "halved"}
SEVERAL = {"parted", "halved"}  # it may be others that are lost
NOBODYS = "02:00:00:00:00:01"  # the hardware address of no host
SMALL = ["--workload", "digits-vgg11", "--threads", "1"]
CLUSTER = ROOT / "scripts" / "namespace_cluster.sh"
MASTER = "10.77.0.1"
ENDS_WITH_THIS = ["setpriv", "--pdeathsig", "KILL"]


class Hosts:
    """A host for each rank: a network namespace with a link of 1 Gbit/s."""

    def __init__(self, ranks: int, logs: Path) -> None:
        self._script = subprocess.Popen(
            [*ENDS_WITH_THIS, CLUSTER, "-n", str(ranks), "-l", logs, "sleep", "infinity"],
            stderr=subprocess.PIPE, text=True)
        words = self._script.stderr.readline().split()  # type: ignore[union-attr]
        self._target = words[words.index("--target") + 1]
        while not self._inside("start").exists():
            time.sleep(0.1)
        self._ranks = ranks
        self._ip("link", "add", "bridge1", "type", "bridge")
        self._ip("link", "set", "bridge1", "up")

    def _inside(self, name: str) -> Path:
        return Path(f"/proc/{self._target}/root/run/{name}")

    def prefix(self, rank: int) -> list[str]:
        return ["nsenter", f"--net={self._inside('netns')}/node{rank}"]

    def lose(self, rank: int, fault: str, choose: random.Random) -> None:
        """Breaks the network at a rank's host as the fault says."""
        others = [each for each in range(self._ranks) if each != rank]
        if fault in ("cut", "frozen"):
            self._ip("link", "set", f"link{rank}", "down")
        elif fault == "halved":
            for each in [rank, *choose.sample(others, choose.randrange(len(others)))]:
                self._ip("link", "set", f"link{each}", "master", "bridge1")
        elif fault == "parted":
            other = choose.choice(others)
            self._part(rank, other)
            self._part(other, rank)

    def _part(self, rank: int, other: int) -> None:
        self._ip("neighbour", "replace", f"10.77.0.{other + 1}", "lladdr", NOBODYS, "dev", "eth0",
                 "nud", "permanent", node=rank)

    def mend(self) -> None:
        """Undoes all that was done to the network."""
        for rank in range(self._ranks):
            self._ip("link", "set", f"link{rank}", "up", "master", "bridge0")
            self._ip("neighbour", "flush", "dev", "eth0", "nud", "permanent", node=rank)

    def _ip(self, *words: str, node: int | None = None) -> None:
        inside = (["--target", self._target, "--net"] if node is None
                  else [f"--net={self._inside('netns')}/node{node}"])
        subprocess.run(["nsenter", *inside, "ip", *words], check=True)

    def end(self) -> None:
        self._script.kill()
        self._script.wait()


class Ranks:
    """The ranks of one run on this machine. Each start of one appends to its own file of output."""

    def __init__(self, options: argparse.Namespace, flags: Sequence[str], folder: Path,
                 hosts: Hosts | None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder, self._hosts = folder, hosts
        self._command = [sys.executable, f"{options.part}/main.py", "--master-ip",
                         MASTER if hosts else "127.0.0.1", "--num-nodes",
                         f"{options.least}:{options.ranks}", "--master-port", str(port),
                         "--output-dir", str(folder), *flags]
        self.running = {rank: self._start(rank) for rank in range(options.ranks)}

    def _start(self, rank: int) -> subprocess.Popen:
        prefix = self._hosts.prefix(rank) if self._hosts else []
        with (self._folder / f"rank{rank}.out").open("a") as output:
            return subprocess.Popen([*ENDS_WITH_THIS, *prefix, *self._command, "--rank", str(rank)],
                                    cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def lose(self, rank: int, fault: str, choose: random.Random) -> None:
        """Plants a fault."""
        if self._hosts:
            self._hosts.lose(rank, fault, choose)
        if fault == "killed":
            self.kill(rank)
        elif fault in ("stopped", "frozen"):
            self.running[rank].send_signal(signal.SIGSTOP)

    def bring_back(self, rank: int) -> dict[int, int]:
        """Undoes a fault, and starts the ranks that have ended, as scripts/supervise.sh would.

        Returns the exit codes of those.
        """
        if self._hosts:
            self._hosts.mend()
        self.running[rank].send_signal(signal.SIGCONT)
        ended = {rank: code for rank, code in enumerate(self.codes()) if code}
        self.running |= {rank: self._start(rank) for rank in ended}
        return ended

    def footprint(self, rank: int) -> list[int]:
        """Threads, open files (sockets among them), and MB of memory of a rank that runs."""
        process = Path(f"/proc/{self.running[rank].pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return [int(status["Threads"]), len(list((process / "fd").iterdir())),
                int(status["VmRSS"].split()[0]) >> 10]

    def kill(self, rank: int) -> None:
        self.running[rank].kill()
        self.running[rank].wait()

    def codes(self) -> list[int | None]:
        """The exit codes; None of those that run."""
        return [each.poll() for each in self.running.values()]

    def end(self) -> None:
        for rank in self.running:
            self.kill(rank)


def disturb(options: argparse.Namespace, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """Trains while ranks are lost; returns the faults, the seconds in all, and the exit codes."""
    hosts = Hosts(options.ranks, folder / "hosts") if LINKS & set(options.faults) else None
    choose, faults = random.Random(options.seed), []
    victims = [rank for rank in range(options.ranks) if rank not in options.spare]
    ranks, begun = Ranks(options, flags, folder, hosts), time.monotonic()
    try:
        while not events(folder, "step") and None in ranks.codes():
            time.sleep(0.2)
        started = time.monotonic()

        def is_over(seconds: float) -> bool:
            """Waits; returns True as soon as a rank has done all steps, or none runs."""
            until = time.monotonic() + seconds
            while 0 not in ranks.codes() and None in ranks.codes():
                if time.monotonic() > until:
                    return False
                time.sleep(0.1)
            return True

        while len(faults) != options.losses and not is_over(options.every):
            rank, fault = choose.choice(victims), choose.choice(options.faults)
            faults.append({"time": time.time(), "rank": rank, "fault": fault,
                           "spared": [ranks.footprint(each) for each in options.spare]})
            ranks.lose(rank, fault, choose)
            is_over(SECONDS_AWAY[fault])
            faults[-1]["ended"] = ranks.bring_back(rank)
        while 0 not in ranks.codes() and None in ranks.codes():
            time.sleep(0.1)
        ends = time.monotonic() + LATE_SECONDS  # who was started too late finds nobody
        while None in ranks.codes() and time.monotonic() < ends:
            time.sleep(0.1)
        return {"faults": faults, "seconds": time.monotonic() - started,
                "seconds_to_start": started - begun, "codes": ranks.codes()}
    finally:
        ranks.end()
        if hosts:
            hosts.end()


def events(folder: Path, *kinds: str) -> list[list[dict[str, Any]]]:
    """The events of these kinds in the log of each rank that has any."""
    logs = [[event for event in read_events(path) if event["event"] in kinds]
            for path in sorted(folder.rglob("metrics_rank*.jsonl"))]
    return [log for log in logs if log]


def digest_in(folder: Path) -> str:
    """The digest that a finished run in `folder` has left. Raises DataError where there is none."""
    for path in folder.rglob("summary.json"):
        return json.loads(path.read_text())["weights"]
    ends = [path.read_text(errors="replace").strip().splitlines()[-1:]
            for path in sorted(folder.glob("rank*.out"))]
    raise DataError(f"no run has ended; the ranks' last lines: {ends}")


def stalls(folder: Path, faults: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds in which the others stood still, by what happened; the slowest rank's of each change.

    After a fault: from the fault itself until the next step can begin. When a rank comes: from
    the moment at which the leader has seen it.
    """
    longest: dict[tuple[str, float], float] = {}
    for log in events(folder, "start", "regrouped"):
        for begun, event in zip(log[:-1], log[1:], strict=True):
            if event["event"] != "regrouped" or len(event["came"]) > 1 or (
                    set(event["lost"]) & set(event["came"])):  # it came itself
                continue
            cause = next((fault for fault in reversed(faults) if fault["time"] < begun["time"] and (
                fault["rank"] in event["lost"] or event["lost"] and fault["fault"] in SEVERAL)),
                None)
            seconds = begun["time"] - cause["time"] if cause else event["seconds"]
            key = ((cause["fault"], cause["time"]) if cause else
                   (f"rank {event['came'] or event['lost']}", round(begun["time"])))
            longest[key] = max(longest.get(key, 0.0), seconds)
    found: dict[str, list[float]] = {}
    for (what, _), seconds in longest.items():
        found.setdefault("came" if what.startswith("rank") else what, []).append(seconds)
    return found


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This program's options, and the run's."""
    parser = SentenceParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", default="PartTwo", choices=("PartTwo", "PartThree"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--least", type=int, default=2, metavar="MIN")
    parser.add_argument("--faults", type=lambda text: text.split(","), default=["killed"],
                        metavar="LIST", help=", ".join(SECONDS_AWAY))
    parser.add_argument("--spare", type=int, nargs="*", default=[], metavar="RANK",
                        help="ranks that are not lost; their threads, files and memory are kept")
    parser.add_argument("--every", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--losses", type=int, help="at most so many (default: until the end)")
    parser.add_argument("--steps", type=int, default=300, help="of the run")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of ranks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options, flags = parser.parse_known_args(arguments)
    unknown = set(options.faults) - set(SECONDS_AWAY)
    if unknown:
        raise UsageError(f"--faults {unknown.pop()} is none of {', '.join(SECONDS_AWAY)}")
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
        seconds = stalls(disturbed, found["faults"])
    waits = sum(map(sum, seconds.values()))
    print(f"{len(found['faults'])} faults in {found['seconds']:.0f} s; the others stood still for "
          f"{waits:.1f} s: useful time {1 - waits / found['seconds']:.1%}; exit codes "
          f"{found['codes']}")
    for what, each in seconds.items():
        print(f"stall, {what}: median {median(each):.2f} s, longest {max(each):.2f} s, "
              f"n = {len(each)}")
    for rank, first, last in zip(options.spare, *(each["spared"] for each in (
            found["faults"][0], found["faults"][-1])), strict=True):
        print(f"rank {rank}, never lost: {first} threads, files and MB at the first fault, {last} "
              "at the last")
    print(f"digests: {digests[0]} undisturbed, {digests[1]} disturbed. {conditions()}")
    if options.json:
        write_record(options.json, {**found, "n": len(found["faults"]), "every": options.every,
                                    "useful": 1 - waits / found["seconds"], "stalls": seconds,
                                    "digests": digests})
    sys.exit(digests[0] != digests[1])


def _without_sync(flags: Sequence[str]) -> list[str]:
    at = flags.index("--sync") if "--sync" in flags else len(flags)
    return [*flags[:at], *flags[at + 2:]]


if __name__ == "__main__":
    run_program(main)
