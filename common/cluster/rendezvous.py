"""How the ranks find each other: through the store that rank 0 serves, before any process group.

    with join(world, settings, seconds) as (board, me):
        ranks = exchange(board, me, deadline)
"""

import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from common.cluster import addresses
from common.cluster.board import FOREVER, JOINED, SENT_AWAY, Board
from common.cluster.elastic import goes_on_after
from common.cluster.master_port import STORE_TIMEOUT, before, serve_store, wait_for_master
from common.cluster.pace import hurried_seconds
from common.cluster.rank_info import RankInfo, machines, own_gpus
from common.core.console import console, mark
from common.core.failures import PeerLost, RanksDisagree
from common.core.progress import process_progress
from common.core.world import World
from common.settings.settings import Settings

GRACE_SECONDS = 1.0
ON_MACHINE = "ranks on "


@contextmanager
def join(world: World, settings: Settings, join_deadline: float,
         deadline: float = FOREVER) -> Iterator[tuple[Board, RankInfo]]:
    """Opens the run's store; yields the board on it, and this rank's info.

    Every rank must enter. Deadlines are time.monotonic() values: for the store, and for each wait
    on the board. A failure inside is published, and the first one published is raised on every
    rank; an error that is not a Failure is this rank's fault, and raised unchanged. At the end the
    process group, if one was formed, is closed, and the leader leaves last. A group that an elastic
    run leaves is only closed.
    """
    process_progress().mark, say = mark(world), console(world)
    address = addresses.resolve(world.master_address)
    addresses.warn_of_public_address(address, say)
    me = RankInfo.of_this_process(world, settings, *addresses.choose_interface(
        settings.interface, address, world.master_port))
    board = Board(open_store(world, address, join_deadline, say), world, say, deadline)
    is_left = False
    try:
        yield board, me
        _close_group()
    except BaseException as error:
        if is_left := goes_on_after(error):
            raise
        board.fail(error)
    finally:
        if not is_left:
            board.leave()
        _close_group()


def _close_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Roster(Sequence[RankInfo]):
    """The RankInfo of every rank, each read from the board when it is first needed.

    So a rank that needs few reads few: N ranks that read N each would transfer N² of them.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._read: dict[int, RankInfo] = {}

    def __len__(self) -> int:
        return self._board.world.size

    def __getitem__(self, index: Any) -> Any:
        """One rank's, or a list of those in a slice of ranks."""
        if isinstance(index, slice):
            return [self[rank] for rank in range(len(self))[index]]
        rank = range(len(self))[index]
        if rank not in self._read:
            self._read[rank] = RankInfo(**self._board.posted_by(rank, JOINED))
        return self._read[rank]


def exchange(board: Board, me: RankInfo, deadline: float,
             check: Callable[[Sequence[RankInfo]], None] = lambda ranks: None,
             ) -> Sequence[RankInfo]:
    """Every rank's info, by rank: all of them on the leader, elsewhere read when needed.

    Every rank must call. Raises RanksDisagree when this rank is taken or world sizes differ,
    PeerLost when ranks are missing at the deadline, and what `check` raises on the leader.
    """
    world, here = board.world, f"{me.host} (pid {me.pid})"
    size, who = board.first("size", [world.size, f"rank {world.rank} on {here}"])
    if size != world.size:
        raise RanksDisagree(f"rank {world.rank} on {here} was started for {world.size} nodes but "
                            f"{who} for {size}: give every node the same --num-nodes")
    holder = board.first(f"rank {world.rank}", here)
    if holder != here:
        raise RanksDisagree(f"two processes claim rank {world.rank}: {holder} and {here}; "
                            "give each node a --rank of its own")
    ranks: Sequence[RankInfo] = Roster(board)

    def decide(joined: list[dict[str, Any]]) -> bool:
        nonlocal ranks
        ranks = [RankInfo(**each) for each in joined]
        check(ranks)
        enough_gpus = True
        for machine, ranks_there in machines(ranks).items():
            own = own_gpus([ranks[rank].gpus for rank in ranks_there])
            enough_gpus = enough_gpus and bool(own)
            board.tell(ON_MACHINE + machine, [ranks_there, own])
        return enough_gpus

    board.collect(JOINED, asdict(me), decide, deadline,
                  addresses.loopback_hint(world.master_address))
    return ranks


def neighbours(board: Board, me: RankInfo) -> tuple[list[int], int, bool]:
    """The ranks on this rank's machine, in order; this rank's GPU; whether all can have their own.

    The GPU is an index for choose_device. For any rank, after `exchange`.
    """
    here, own = board.told(ON_MACHINE + me.machine)
    place = here.index(me.rank)
    return here, own[place] if own else place, board.told(JOINED)


def open_store(world: World, address: str, deadline: float, say: Callable[[str], None]) -> Store:
    """A connection to the run's store; the leader serves it first. Every rank must call.

    Raises PeerLost when no store of rank 0 answers by the deadline, UsageError when another program
    holds the port, and RanksDisagree when the store belongs to a job with another token; that job
    then goes on.
    """
    addresses.allow_connections()
    if world.is_leader and not world.store_is_served:
        store = PrefixStore(_prefix(world), serve_store(address, world.master_port))
        return _check_token(store, world, address, deadline)
    wait_for_master(world, address, deadline, say)
    return before(deadline + GRACE_SECONDS,
                  lambda: _check_token(connect_store(world, address), world, address, deadline),
                  addresses.place(address, world.master_port))


def connect_store(world: World, address: str) -> Store:
    """One more connection to a store that is being served."""
    return PrefixStore(_prefix(world), TCPStore(address, world.master_port, is_master=False,
                                                timeout=STORE_TIMEOUT))


def _prefix(world: World) -> str:
    """A restarted job must not read what its earlier attempts left on a launcher's store.

    A store of rank 0's own is new in each attempt. There the number must not matter: each of
    torchrun's agents counts its own restarts, and that of a host that came late counts from 0.
    """
    return f"attempt{world.attempt}" if world.store_is_served else "run"


def _check_token(store: Store, world: World, address: str, deadline: float) -> Store:
    """The store, once its token is known to be this job's: the leader writes the token's digest."""
    digest = hashlib.sha256(f"token {world.token}".encode()).hexdigest()
    if world.is_leader:
        store.set("token", digest)
    while not store.check(["token"]):
        if time.monotonic() > deadline:
            raise PeerLost(f"{addresses.place(address, world.master_port)} answers, but rank 0 has "
                           "not joined there: is rank 0 running?")
        time.sleep(hurried_seconds(world.size))
    if store.get("token").decode() != digest:
        store.set(SENT_AWAY, f"rank {world.rank} on {socket.gethostname()}")
        raise RanksDisagree(f"rank {world.rank} on {socket.gethostname()} has another RUN_TOKEN "
                            f"than the job at {addresses.place(address, world.master_port)}: give "
                            "all ranks of a job the same, and each job a --master-port of its own")
    return store
