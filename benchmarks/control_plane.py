#!/usr/bin/env python3
"""Measures joining and watching many ranks, and how soon a lost one is named, without training.

    python3 benchmarks/control_plane.py                          # 25 minutes, needs 6 GB
    python3 benchmarks/control_plane.py --sizes 16 64 --minutes 1 --runs 1

All ranks are on this machine, as threads of a few processes, and start 20 ms after one another; the
leader, whose share of a core is measured, and the rank that is lost are processes of their own. A
quiet cluster runs --minutes at the largest size, and a tenth of that at the others. The clock of a
fault runs until the last rank has named the lost one. A killed rank's neighbour sees its connection
break, as in a collective.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.control_plane_benchmark.ranks import LOST, SharedCluster, run_process
from common.cluster.program import run_program
from common.core.failures import DataError
from common.core.markdown import markdown_table
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser
from studies.proof.ranks import CONTEXT, preload

FAULTS = ("killed", "stopped", "stuck")
RANKS_A_PROCESS = 64
PATIENCE, SHORT_PATIENCE = 60.0, 5.0
LONGEST_START, LONGEST_FAULT = 300.0, 60.0


@contextlib.contextmanager
def running(size: int, patience: float) -> Iterator[tuple[SharedCluster, list[Any], float]]:
    """A cluster whose ranks have all joined: what it shares, its processes, seconds to start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        cluster = SharedCluster(size, free.getsockname()[1], patience)
    parts = [range(1), range(LOST, LOST + 1),
             *(range(first, min(size, first + RANKS_A_PROCESS))
               for first in range(LOST + 1, size, RANKS_A_PROCESS))]
    processes = [CONTEXT.Process(target=run_process, args=(cluster, part)) for part in parts]
    try:
        for process in processes:
            process.start()
        _wait(lambda: all(cluster.ready), LONGEST_START, "the processes did not start")
        begun, cluster.go.value = time.monotonic(), 1
        _wait(lambda: all(cluster.joined), LONGEST_START, "the ranks did not join")
        yield cluster, processes, max(cluster.joined) - begun
    finally:
        for process in reversed(processes):  # the leader last: no rank shall miss it
            process.kill()
            process.join()


def _wait(is_done: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise DataError(otherwise)
        time.sleep(0.05)


class Detection(NamedTuple):
    """One run with one fault: seconds until the last rank has named the lost one, and to start.

    `false_alarms` counts the ranks that named another one, or named it before it was lost.
    """

    seconds: float
    start_up: float
    false_alarms: int


def name_lost(size: int, fault: str) -> Detection:
    patience = SHORT_PATIENCE if fault == "stuck" else PATIENCE
    with running(size, patience) as (cluster, processes, start_up):
        time.sleep(random.uniform(3, 4))
        too_early = sum(1 for ended in cluster.ended if ended)
        begun = time.monotonic()
        if fault == "stuck":
            cluster.is_stuck.value = 1
        else:
            os.kill(processes[1].pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            cluster.is_broken.value = int(fault == "killed")
        others = [rank for rank in range(size) if rank != LOST]
        _wait(lambda: all(cluster.ended[rank] for rank in others), LONGEST_FAULT,
              f"not all ranks named the {fault} one")
        return Detection(max(cluster.ended[rank] for rank in others) - begun, start_up,
                         max(too_early, cluster.surprises.value))


def quiet(size: int, seconds: float) -> dict[str, float]:
    """Measures a cluster without faults: start, load of the store and the leader, false alarms."""
    with running(size, PATIENCE) as (cluster, processes, start_up):
        at_start = sum(cluster.requests)
        time.sleep(5)
        begun, requests, busy = time.monotonic(), sum(cluster.requests), _busy(processes[0].pid)
        time.sleep(seconds)
        passed = time.monotonic() - begun
        return {"start_up": start_up, "start_up_requests": at_start, "quiet_seconds": passed,
                "requests_a_second": (sum(cluster.requests) - requests) / passed,
                "leaders_share": (_busy(processes[0].pid) - busy) / passed,
                "false_alarms": sum(1 for ended in cluster.ended if ended)}


def _busy(pid: int) -> float:
    """Processor seconds of a process so far, over all its threads, the store's included."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(size: int, runs: int, seconds: float) -> dict[str, Any]:
    """Measures everything for one cluster size."""
    print(f"{size} ranks", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {"size": size, "runs": runs, "load": os.getloadavg()[0],
                               **quiet(size, seconds)}
    print(f"without a fault: {figures}", file=sys.stderr, flush=True)
    starts = [figures["start_up"]]
    for fault in FAULTS:
        named = [name_lost(size, fault) for _ in range(runs)]
        print(f"{fault}: {named}", file=sys.stderr, flush=True)
        figures[fault] = [each.seconds for each in named if not each.false_alarms]
        starts += [each.start_up for each in named]
        figures["false_alarms"] += sum(each.false_alarms for each in named)
    return figures | {"start_up": starts}


def table(sizes: list[dict[str, Any]]) -> str:
    head = ("ranks", "start-up", "requests to start", "requests/s", "leader's share of a core",
            *(f"{fault}: named" for fault in FAULTS), "false alarms", "quiet for", "load")
    return markdown_table(head, [(
        each["size"], _spread(each["start_up"]), f"{each['start_up_requests']:,}",
        f"{each['requests_a_second']:,.0f}", f"{each['leaders_share']:.2f}",
        *(_spread(each[fault]) for fault in FAULTS), each["false_alarms"],
        f"{each['quiet_seconds'] / 60:.1f} min", f"{each['load']:.1f}") for each in sizes])


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    p95 = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return f"{median(seconds):.1f} ({p95:.1f}) s"


def main() -> None:
    parser = SentenceParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024], metavar="N",
                        help="numbers of ranks (default: 16 64 256 1024)")
    parser.add_argument("--minutes", type=float, default=10.0,
                        help="without a fault, at the largest size (default: 10)")
    parser.add_argument("--runs", type=int, default=3, help="of each fault (default: 3)")
    parser.add_argument("--json", type=Path, help="also keep the figures in this file")
    options = parser.parse_args()
    # torch's store looks up each peer's name; a name server that is silent costs 5 s a connection.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # it tells of each name it cannot find
    preload("benchmarks.control_plane_benchmark.ranks")
    rows = []
    for size in sorted(options.sizes):
        is_largest = size == max(options.sizes)
        rows.append(measure(size, options.runs, options.minutes * (60 if is_largest else 6)))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{table(rows)}\n\nmedian (p95); {options.runs} runs of each fault, a start for each; "
          f"a stuck rank at --timeout {SHORT_PATIENCE:.0f}; {conditions()}")


if __name__ == "__main__":
    run_program(main)
