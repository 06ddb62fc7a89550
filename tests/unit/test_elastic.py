"""A process leaves a broken group: its connections end, but for its door's, and nothing stays open.

Mutations that turn this red: no shutdown in break_off; the door's port not left out; a duplicate in
_sockets that nobody closes; unless_broken that waits for the future alone; an
empty _count_groups_anew.
"""

import os
import socket
import threading
from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch.distributed as dist

from common.cluster import elastic, process_group
from common.cluster.doors import Doors
from common.cluster.elastic import Elastic
from common.cluster.membership import Get, Put
from common.core.failures import PeerLost
from tests.forked import forked


def member_without_group() -> Elastic:
    member = object.__new__(Elastic)
    member._doors, member.broken = Doors("127.0.0.1", 0, must=False), Future()
    return member


def break_off_again() -> dict:
    member = member_without_group()
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    visitor = Doors("127.0.0.1", 0, must=False)

    def visit():
        yield Put(member._doors.mine, "word", "heard")
        return (yield Get(member._doors.mine, "word"))

    before = visitor.carry_out(visit())
    member.break_off()
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        member.break_off()
    return {"ended": here.recv(1) == b"" == there.recv(1), "before": before,
            "files": len(os.listdir("/proc/self/fd")) - files,
            "after": visitor.carry_out(visit()), "is_broken": member.broken.done()}


def test_connections_end_but_for_the_doors_and_no_file_stays_open(tmp_path):
    ended = forked(break_off_again, output=tmp_path / "output.txt")
    assert ended.value == {"ended": True, "before": "heard", "files": 0, "after": "heard",
                           "is_broken": True}, ended.output


def test_what_waits_in_the_background_is_left_alone_when_the_group_breaks(monkeypatch):
    member, arrives = member_without_group(), threading.Event()
    monkeypatch.setattr(elastic, "_processes", [member])
    assert elastic.in_background(lambda: 7) == 7
    begun = threading.Event()

    def receive() -> None:
        begun.set()
        arrives.wait()

    threading.Thread(target=lambda: (begun.wait(), member.broken.set_result(None))).start()
    with pytest.raises(PeerLost):
        elastic.in_background(receive)
    arrives.set()


def test_a_door_tells_a_process_that_has_ended_from_one_that_says_nothing():
    here, there = Doors("127.0.0.1", 0, must=False), Doors("127.0.0.1", 0, must=False)
    mine = there.mine
    assert not here.has_ended(mine) and not here.has_ended(mine)
    del there
    assert here.has_ended(mine) and here.has_ended(mine)


def test_a_group_that_was_not_formed_leaves_no_name_behind(tmp_path):
    ended = forked(form_after_failure, output=tmp_path / "output.txt")
    assert ended.value == ["0", "0"], ended.output


def form_after_failure() -> list[str]:
    """The names of a rank's group: after an attempt that failed, and on a rank without one."""
    names = []
    with pytest.raises(RuntimeError):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2,
                                timeout=timedelta(milliseconds=50))
    for _ in range(2):
        process_group._count_groups_anew()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        names.append(dist.group.WORLD.group_name)
        dist.destroy_process_group()
    return names
