"""When ranks wait for each other for ever, and when one of them or its link is only slow.

Mutations that turn this red: leave out any condition of Standstill._place or of `standstill`;
CONFIRMED = 0; leave the store's port in holds_bytes; note the waits of every thread; do not put
`waiting` back; walk the frames of a thread again.
"""

import ast
import re
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from common.cluster import connections
from common.cluster.connections import holds_bytes
from common.core.world import World
from common.run.waits import Mark, Whereabouts, noted
from common.witnessing import standstill as module
from common.witnessing.standstill import (
    CONFIRMED,
    QUIET_SECONDS,
    RankProgress,
    Standstill,
    is_running,
    standstill,
)
from tests.facts import says
from tests.ranks import ROOT
from tests.unit.test_structure import SOURCES

WAITS = Mark(rounds=8, batches=4, steps=3, waiting="backward")
BEHIND = Mark(rounds=6, batches=3, steps=3)


def place(mark: Mark, has_ended: bool = False, length: int | None = None) -> RankProgress:
    return RankProgress(9, True, has_ended, list(mark), length)


@pytest.mark.parametrize("one, other, clauses", [
    (place(BEHIND, True), place(WAITS), [("rank 1", 3), ("rank 0", "backward", "batch 4"),
                                         ("DistributedSampler",)]),
    # `continue` after the model was called
    (place(Mark(7, 4, 3), True), place(WAITS), [("rank 1", "behind", 4, 3), ("`continue`",),
                                                ("rank 0", "backward", "batch 4")]),
    # one more call of a DDP model with buffers
    (place(Mark(8, 5, 3, "forward")), place(WAITS), [
        ("rank 0", "behind", "backward", "batch 4"), ("rank 1", "forward", "batch 5"),
        ("`continue`",)]),
    # its epoch is over, and it averages a metric
    (place(Mark(8, 3, 3, "sync"), length=3), place(WAITS, length=4), [
        ("rank 1", "behind", "collective", "batch 3"), ("rank 0", "backward", "batch 4"),
        ("rank 1", 3, "rank 0", 4), ("DistributedSampler",)]),
    # Each took part in the same collective: its last message is late or lost.
    (place(Mark(8, 4, 4), True), place(WAITS), []),
    (place(Mark(8, 3, 3), True), place(WAITS), []),
    (place(WAITS), place(WAITS), []),  # all at one place: a slow network
    (place(BEHIND, True), place(WAITS, True), [])])
def test_both_ranks_are_named_and_what_each_waits_for(one, other, clauses):
    found = standstill({0: other, 1: one})
    assert bool(clauses) == bool(found)
    for facts in clauses:
        assert any(says(clause, *facts) for clause in re.split("[;:.]", found)), facts


class Ranks:
    """Two ranks' places as the leader hears them, posted when a test says so."""

    def __init__(self) -> None:
        here = Whereabouts()
        self.leader = Standstill(HashStore, 0, World(0, 2), here, None)
        self.posted = {0: place(WAITS), 1: place(BEHIND, True)}

    def hear(self, *ranks: int, **changed: object) -> str:
        for rank in ranks:
            self.posted[rank] = self.posted[rank]._replace(
                beat=self.posted[rank].beat + 1, **changed)
        return self.leader._judge(self.posted)


def test_no_verdict_before_every_rank_has_spoken_since_all_were_quiet():
    """A rank that was stopped has posted before what came to it since."""
    ranks = Ranks()
    for _ in range(5):
        assert not ranks.hear(0)
    for _ in range(CONFIRMED - 1):
        assert not ranks.hear(0, 1)
    assert ranks.hear(0, 1)


def test_one_rank_that_moves_in_between_begins_all_anew():
    ranks = Ranks()
    ranks.hear(0, 1)
    assert not ranks.hear(1, is_quiet=False)
    for _ in range(CONFIRMED):
        assert not ranks.hear(0, 1, is_quiet=True)
    assert ranks.hear(0, 1)
    assert not ranks.leader._judge({0: ranks.posted[0]})  # and none may be missing


@pytest.fixture
def quiet(monkeypatch):
    """A rank that waits within a quiet process; `beat(seconds)` says whether it calls it so."""
    here, now, used = Whereabouts(), [1000.0], [0.5]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "is_running", lambda: False)
    monkeypatch.setattr(module, "holds_bytes", lambda port: False)
    monkeypatch.setattr(here, "is_asleep", lambda: True)
    monkeypatch.setattr(here, "processor_time", lambda: used[0])
    here.waiting, looks = "sync", Standstill(HashStore, 0, World(0, 2), here, None)

    def beat(seconds: float) -> bool:
        for _ in range(round(seconds)):
            now[0] += 1
            found = looks._place()
        return found.is_quiet
    return here, now, used, beat


def test_a_rank_is_quiet_when_nothing_has_moved_for_long(quiet):
    *_, beat = quiet
    assert not beat(QUIET_SECONDS) and beat(2)


@pytest.mark.parametrize("moves", [
    lambda here, now, used, patch: setattr(here, "rounds", here.rounds + 1),
    lambda here, now, used, patch: setattr(here, "waiting", ""),
    lambda here, now, used, patch: used.append(used.pop() + 1e-4),  # computes on a busy machine
    lambda here, now, used, patch: now.append(now.pop() + 15),  # SIGSTOP, and SIGCONT
    lambda here, now, used, patch: patch.setattr(here, "is_asleep", lambda: False),
    lambda here, now, used, patch: patch.setattr(module, "is_running", lambda: True),
    lambda here, now, used, patch: patch.setattr(module, "holds_bytes", lambda port: True)])
def test_a_rank_is_not_quiet_once_anything_moves(moves, quiet, monkeypatch):
    here, now, used, beat = quiet
    assert beat(QUIET_SECONDS + 2)
    moves(here, now, used, monkeypatch)
    assert not beat(1)


def test_a_rank_that_has_left_its_loop_may_poll(quiet):
    here, _, used, beat = quiet
    here.waiting, here.has_ended = "", True
    assert beat(QUIET_SECONDS + 2)
    used[0] += 1
    assert beat(1)


def asleep_and_at_work(waits) -> tuple[bool, bool]:
    """(the thread that trains counts as asleep, the process counts as running)."""
    found: list[bool] = []
    here = Whereabouts()

    def look() -> None:
        time.sleep(0.2)
        found.extend([here.is_asleep(), is_running()])
    thread = threading.Thread(target=look)
    thread.start()
    waits(thread)
    thread.join()
    return found[0], found[1]


def test_only_a_wait_for_another_thread_is_one_for_other_ranks():
    def compute(thread: threading.Thread) -> None:
        while thread.is_alive():
            sum(range(1000))
    assert asleep_and_at_work(lambda thread: thread.join(1)) == (True, False)
    assert not asleep_and_at_work(lambda thread: time.sleep(1))[0]
    assert asleep_and_at_work(compute)[1]


def test_bytes_that_are_unread_or_on_their_way_are_seen_but_on_the_store():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, server.accept()[0] as other:
            assert not holds_bytes(0)
            one.sendall(b"gradients")
            assert holds_bytes(0) and not_seen(port)
            other.recv(100)
            assert not holds_bytes(0)


def not_seen(port: int) -> bool:
    """True if the port's connections do not count, and another's without bytes would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            return not holds_bytes(port)


def test_where_no_connection_can_be_seen_nothing_is_quiet(monkeypatch, tmp_path):
    monkeypatch.setattr(connections, "TABLES", (tmp_path / "none",))
    assert holds_bytes(0)


@contextmanager
def one_rank():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_the_thread_that_trains_notes_its_waits_itself():
    weight = torch.ones(2, requires_grad=True)
    seen: list[Mark] = []
    before = dist.Work.wait, torch.autograd.backward
    with one_rank(), noted(Whereabouts()) as here:
        weight.register_hook(lambda gradient: seen.append(here.how_far()))
        weight.sum().backward()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert here.waiting == "" and here.rounds == 1 and seen == [Mark(1, 0, 0, "backward")]
        work.wait()
        assert (here.rounds, here.phase) == (2, "start")
        other = threading.Thread(target=lambda: weight.sum().backward())
        other.start()
        other.join()
        assert here.rounds == 2
        with pytest.raises(RuntimeError):
            torch.ones(1).backward()
        assert here.waiting == ""
    assert before == (dist.Work.wait, torch.autograd.backward)


def test_no_file_looks_at_the_frames_of_another_thread():
    """In Python 3.11 they may be freed while they are looked at: a segmentation fault."""
    forbidden = {"_current_frames", "f_back", "settrace", "setprofile"}
    for path in [*SOURCES, *(ROOT / "examples").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            assert getattr(node, "attr", "") not in forbidden, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "faulthandler.register":
                assert any(each.arg == "all_threads" and not ast.literal_eval(each.value)
                           for each in node.keywords), path


def test_many_looks_at_a_thread_that_trains_do_it_no_harm():
    """Thousands a second, by three threads, while it goes in and out of its waits."""
    looks, is_over = [0], threading.Event()
    with one_rank(), noted(Whereabouts()) as here:
        def look() -> None:
            while not is_over.is_set():
                here.phase, here.how_far(), here.is_asleep(), here.processor_time()
                looks[0] += 1
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        weight = torch.ones(3, requires_grad=True)
        for _ in range(500):
            weight.sum().backward()
            dist.all_reduce(weight.grad)
        is_over.set()
        for thread in threads:
            thread.join()
    assert here.rounds == 1000 and looks[0] > 0 and here.waiting == ""
