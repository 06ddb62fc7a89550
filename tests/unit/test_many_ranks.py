"""The requests of N ranks to their one store grow with N, not N²: in each beat, and at the start.

Mutations that turn this red: let every rank read `board.posted("beat")` in Watch._listen, or
`all_posted("boundary")` in the agreement; return `[each for each in Roster(board)]` from exchange;
drop " again" from Node.agree; drop allow_connections from open_store; ask whether a key is there
before it is read.
"""

import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from common.cluster import board
from common.cluster.board import Board
from common.cluster.node import Node
from common.cluster.rank_info import RankInfo
from common.cluster.rendezvous import exchange, open_store
from common.cluster.stopping import Stop
from common.cluster.watch import Watch
from common.core.failures import PeerLost, RanksDisagree, Verdict
from common.core.progress import Progress
from common.core.world import World
from tests.facts import says
from tests.ranks import free_port

FEW, MANY = 8, 32


class CountingStore:
    """A store that counts the keys it is asked for, over all ranks; `get` waits for one first."""

    def __init__(self) -> None:
        self.store, self.count, self._lock = HashStore(), 0, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        def call(first: Any, *more: Any) -> Any:
            with self._lock:
                keys = len(first) if isinstance(first, list) else 1
                self.count += keys * (2 if name in ("get", "multi_get") else 1)
            return getattr(self.store, name)(first, *more)
        return call


def boards_on(store: CountingStore, ranks: int) -> list[Board]:
    return [Board(store, World(rank, ranks), deadline=time.monotonic() + 60)
            for rank in range(ranks)]


def info(rank: int) -> RankInfo:
    return RankInfo(rank, f"node{rank}", 100 + rank, "127.0.0.1", "lo", machine=f"m{rank // 4}")


def operations_a_beat(ranks: int, alike: bool) -> float:
    """Requests of all ranks together while they train or, if not `alike`, stop for a signal."""
    store, beats = CountingStore(), 5
    boards, stops = boards_on(store, ranks), [Stop() for _ in range(ranks)]
    watches = [Watch(each, lambda: store, 60, stop, Progress(1, 5, "forward", True))
               for each, stop in zip(boards, stops, strict=True)]
    for each in watches:
        each.names = [str(info(rank)) for rank in range(ranks)]
        each._end_process = lambda failure: None
    if not alike:
        for each in boards:
            each.first("stop", ["stopped by SIGTERM", 143])
        stops[1].begin_step()  # it never comes to a boundary, and all ranks wait for it
    for _ in range(beats):
        for one, its_board in zip(watches, boards, strict=True):
            one._post(its_board)
            one._listen(its_board)
            one._judge(its_board)
    return store.count / beats


@pytest.mark.parametrize("alike", [True, False])
def test_the_watchs_operations_grow_with_the_ranks(alike):
    few, many = (operations_a_beat(ranks, alike) for ranks in (FEW, MANY))
    assert many / few < 1.25 * MANY / FEW


def test_what_is_told_is_read_by_one_request():
    store = CountingStore()
    one, _ = boards_on(store, 2)
    assert one.told("news") is one.read_first("verdict") is None and store.count == 2
    one.tell("news", [1, "two"])
    assert one.told("news") == [1, "two"] and store.count == 4


def start_up(ranks: int) -> int:
    """The operations of a start-up, in which no rank waits longer than a moment."""
    store = CountingStore()

    def start(its_board: Board) -> None:
        infos = exchange(its_board, info(its_board.world.rank), time.monotonic() + 60)
        node = Node(its_board.world, torch.device("cpu"), 1, ranks=infos, store=store)
        node.agree("data", "digest")
        node.agree("initial weights", "digest")
        its_board.conclude()

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(start, boards_on(store, ranks)))
    return store.count


def test_the_start_ups_operations_grow_with_the_ranks(monkeypatch):
    # A rank that waits looks twice a second: so looks count as little as they cost.
    monkeypatch.setattr(board, "poll_seconds", lambda *_: 0.5)
    assert start_up(MANY) / start_up(FEW) < 1.5 * MANY / FEW


def test_ranks_that_differ_are_named_on_every_rank():
    """Also the second time they agree on a topic, as in Part Two's second run."""
    store = CountingStore()

    def agree(its_board: Board) -> str:
        rank = its_board.world.rank
        node = Node(its_board.world, torch.device("cpu"), 1, store=store,
                    ranks=[info(each) for each in range(FEW)])
        try:
            node.agree("data", "d1")
            time.sleep(0.2 * (rank == 5))
            node.agree("data", "d2" if rank == 5 else "d1", "; see to it",
                       {"one.weight": 1, "one.bias": 2 + rank // 5, "two.weight": 3 + rank // 5})
        except RanksDisagree as failure:
            its_board.publish(failure)
            return str(failure)
        except Verdict as verdict:
            return str(verdict)
        return "nothing"

    with ThreadPoolExecutor(FEW) as pool:
        told, = set(pool.map(agree, boards_on(store, FEW)))
    assert says(told, "rank 5", "node5", "d2", "rank 0", "node0", "d1", "data", "one.bias",
                "see to it")
    assert "one.weight" not in told and "two.weight" not in told


def test_a_rank_reads_the_info_of_another_when_it_needs_it():
    store, read = CountingStore(), {}

    def join(its_board: Board) -> None:
        infos = exchange(its_board, info(its_board.world.rank), time.monotonic() + 60)
        read[its_board.world.rank] = infos

    with ThreadPoolExecutor(FEW) as pool:
        list(pool.map(join, boards_on(store, FEW)))
    before = store.count
    assert read[3][7] == read[0][7] == info(7)
    assert store.count == before + 2
    assert all(says(each, f"rank {rank}", f"node{rank}")
               for rank, each in enumerate(read[3][-2:], FEW - 2))
    assert len(list(read[3])) == FEW


def test_who_is_missing_is_told_to_the_ranks_that_wait(monkeypatch):
    monkeypatch.setattr(board, "REMARK_SECONDS", 0.05)
    store, said = HashStore(), {rank: [] for rank in range(3)}
    boards = [Board(store, World(rank, 3), said[rank].append, time.monotonic() + 1)
              for rank in range(3)]

    def wait(its_board: Board) -> str:
        with pytest.raises((PeerLost, Verdict)) as raised:
            its_board.share("the data", 1)
        return str(its_board.publish(raised.value))

    with ThreadPoolExecutor(2) as pool:
        end, = set(pool.map(wait, boards[:2]))
    missing = ("the data", 2, 3, "rank 2")
    assert says(end, *missing, "--timeout")
    assert all(any(says(line, *missing) for line in said[rank]) for rank in (0, 1))
    assert not said[2]


def test_the_leader_may_have_a_connection_for_each_rank():
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, 1024), most))
    try:
        open_store(World(0, 2, master_port=free_port()), "127.0.0.1", time.monotonic() + 60, print)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
