"""How long until every other rank has ended, by kind of fault: median and 95th percentile.

    python3 benchmarks/detection.py --runs 20

Four ranks of Part Two on this machine train the tests' small model. The clock runs from the fault
(for "asleep", from the end of --timeout 6) until the last of the other ranks has ended with exit
code 75 and the culprit's name.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import os
import platform
import random
import signal
import statistics
import tempfile
from functools import partial

from tests.faults.disturbed import joined, running, wait_for
from tests.faults.test_lost_peers import check_survivors, end_victim, plant_sleeper
from tests.runs import Case

RANKS = 4
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asleep": None,
          "master killed": signal.SIGKILL, "master stopped": signal.SIGSTOP}


def seconds_until_all_are_out(fault: str, folder: Path, chance: random.Random) -> float:
    """One run with one fault; raises AssertionError when a survivor does not name the culprit."""
    number, step = FAULTS[fault], chance.randint(4, 12)
    victim = 0 if fault.startswith("master") else chance.randrange(1, RANKS)
    patience = 60 if number else 6
    plants = None if number else {victim: partial(plant_sleeper, folder, step)}
    case = Case("all-reduce", RANKS, "memory", 4, 0)
    with running(case, folder, plants=plants, more=("--timeout", str(patience))) as programs:
        wait_for(folder, "training" if number else "asleep", step if number else 0)
        if number:
            os.kill(programs[victim].process.pid, number)
        _, seconds = joined([each for rank, each in enumerate(programs) if rank != victim], 60)
        end_victim(programs, victim)
        check_survivors(programs, victim, [each.process.exitcode for each in programs],
                        "is stuck" if not number else
                        "stopped answering" if victim else "the leader, is lost")
    return seconds if number else seconds - patience


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each fault (default: 20)")
    runs = parser.parse_args().runs
    chance = random.Random(0)
    print(f"{RANKS} ranks on {os.cpu_count()} cores of {platform.machine()}, {runs} runs each")
    print("| fault | p50 | p95 | longest |\n|---|---|---|---|")
    for fault in FAULTS:
        found = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as name:
                found.append(seconds_until_all_are_out(fault, Path(name), chance))
        p95 = statistics.quantiles(found, n=20, method="inclusive")[-1] if runs > 1 else found[0]
        print(f"| {fault} | {statistics.median(found):.1f} s | {p95:.1f} s | {max(found):.1f} s |",
              flush=True)


if __name__ == "__main__":
    main()
