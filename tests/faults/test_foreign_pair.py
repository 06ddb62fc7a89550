"""A program that takes a rank's place while the group is formed is recognised by a missing message.

Mutations that turn this red: call no exchange_greetings in form_group (the ranks hang in a
collective); wait there without the deadline; believe any number that comes.
"""

import contextlib
import os
import socket
import struct
import time
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from common.cluster.pairs import exchange_greetings
from common.cluster.rank_info import RankInfo
from common.core.failures import Failure
from tests.facts import says
from tests.ranks import cluster, error_lines, free_port, run_ranks, started
from tests.workload import SMALL, plant

SEQUENCE = struct.Struct("=q")  # gloo's first bytes say which of its connections this one is
TRIES = 8


def greet(silent: int | None) -> None:
    """One of three ranks, of which `silent` never greets, and is killed at the end."""
    rank = dist.get_rank()
    ranks = [RankInfo(each, "host", 1, f"10.0.0.{each}", "lo") for each in range(3)]
    if rank == silent:
        time.sleep(60)
    exchange_greetings(ranks, rank, seconds=1)


def test_ranks_that_all_answer_go_on():
    run_ranks(3, greet, None)


def test_a_silent_rank_is_named_with_its_address():
    with pytest.raises(Failure, match=r"\brank [02] on host \(10\.0\.0\.[02]\).*"
                                      r"\brank 1 on host \(10\.0\.0\.1\).*\b1 s\b"):
        run_ranks(3, greet, 1)


def listening(pid: int) -> list[int]:
    """The ports on which a process listens on loopback."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor)[len("socket:["):-1])
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return [int(words[1].split(":")[1], 16) for words in lines
            if words[3] == "0A" and words[9] in sockets]


def plant_pause(folder: Path) -> None:
    """The small workload, on a rank that forms its group only when it is told to."""
    plant()
    form = dist.init_process_group

    def paused(*arguments, **more):
        (folder / "paused").touch()
        while not (folder / "go on").exists():
            time.sleep(0.01)
        form(*arguments, **more)
    dist.init_process_group = paused


def intrude(pid: int, known: list[int]) -> list[socket.socket]:
    """Connects to every port that the rank has opened for its group, as its peer would."""
    deadline = time.monotonic() + 20
    while not (ports := set(listening(pid)) - set(known)):
        assert time.monotonic() < deadline, "no port of gloo's"
        time.sleep(0.01)
    connections = []
    for port in ports:
        for number in range(4):
            connections.append(socket.create_connection(("127.0.0.1", port)))
            connections[-1].sendall(SEQUENCE.pack(number))
    time.sleep(0.2)
    return connections


def attacked(folder: Path) -> list[tuple[int | None, str]]:
    """How two ranks end, of which the first is connected to an intruder."""
    folder.mkdir()
    master = free_port()
    programs = cluster("PartTwo", 2, [*SMALL, "--timeout", "6", "--max-iterations", "1", "--sync",
                                      "all-reduce", "--output-dir", str(folder / "out"),
                                      "--master-port", str(master)], folder,
                       before={0: plant, 1: partial(plant_pause, folder)})
    with started([each.process for each in programs]):
        while not (folder / "paused").exists():
            time.sleep(0.01)
        connections = intrude(programs[0].process.pid or 0, [master])
        (folder / "go on").touch()
        outcomes = [each.outcome() for each in programs]
    for each in connections:
        each.close()
    return outcomes


@pytest.mark.slow
def test_an_intruder_in_the_place_of_a_rank_is_told_within_the_timeout(tmp_path):
    """The rank with the greater port of the two connects, so half of the tries hit nothing."""
    for number in range(TRIES):
        outcomes = attacked(tmp_path / str(number))
        if [code for code, _ in outcomes] != [0, 0]:
            break
    for code, output in outcomes:
        line, = error_lines(output)
        assert code == 75 and says(line, "rank 0", "rank 1", "6 s")
