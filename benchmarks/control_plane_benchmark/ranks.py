"""Ranks that do not train: the real join, board, watch, agreement and end, as threads.

The leader and the rank that is to be lost are processes of their own. What the real code would do
to a process at the end of a run, it does here to one rank.
"""

import functools
import os
import sys
import threading
import time
from ctypes import c_double, c_int, c_uint64
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from common.cluster import master_port, rank_info, rendezvous
from common.cluster.node import Node
from common.cluster.process_group import joined
from common.cluster.stopping import Stop
from common.cluster.watch import Watch
from common.core.failures import Failure
from common.core.progress import Progress
from common.core.world import World
from common.settings.settings import Settings

JOIN_SECONDS = 300.0
# Between the starts of two ranks: a rank needs 40 ms of a processor to join, which each has for
# itself in a cluster; a thousand that begin at once on two cores starve each other's heartbeats.
START_EVERY = 0.02
STEP_SECONDS = 1.0
LOOK_SECONDS = 0.05
LOST = 1
# torch's store sends two requests for these: it waits for the key first.
REQUESTS = {"get": 2, "multi_get": 2}


@dataclass
class SharedCluster:
    """Memory shared by a cluster's processes, with a place for each rank; times are monotonic.

    `port` is the store's, `patience` the ranks' --timeout. A rank notes when it has `joined`, and
    when a verdict has `ended` it; it counts the `requests` it sends to the store, key by key.
    """

    size: int
    port: int
    patience: float

    def __post_init__(self) -> None:
        self.ready, self.joined, self.ended, self.requests = (
            RawArray(kind, self.size) for kind in (c_int, c_double, c_double, c_uint64))
        self.go, self.is_stuck, self.is_broken, self.surprises = (RawValue(c_int)
                                                                  for _ in range(4))


class CountingStore:
    """A store that counts the keys it is asked for."""

    def __init__(self, store: Any, cluster: SharedCluster, rank: int) -> None:
        self._store, self._cluster, self._rank = store, cluster, rank

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(first: Any, *more: Any) -> Any:
            keys = len(first) if isinstance(first, list) else 1
            self._cluster.requests[self._rank] += keys * REQUESTS.get(name, 1)
            return method(first, *more)
        return call


def run_process(cluster: SharedCluster, ranks: range) -> None:
    """Runs these ranks in a process, which must be killed at the end."""
    if 0 in ranks:  # a real leader does not share its cores with the other ranks
        os.setsid()  # Linux shares the cores out by session first
    else:
        os.nice(19)
    # Each thread that waits for the interpreter's lock wakes so often: with two hundred of them,
    # whose holder has lost its core, 5 ms left no processor time for anything else.
    sys.setswitchinterval(1.0)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process is killed
    threading.stack_size(512 * 1024)
    _use_in_threads(cluster)
    master_port._greeting_is_known()  # threads that begin together would each find it out
    threads = [threading.Thread(target=_live, args=(cluster, rank), daemon=True) for rank in ranks]
    for rank in ranks:
        cluster.ready[rank] = 1
    while not cluster.go.value:
        time.sleep(0.01)
    begun = time.monotonic()
    for rank, each in zip(ranks, threads, strict=True):
        time.sleep(max(0.0, begun + START_EVERY * rank - time.monotonic()))
        each.start()
    threading.Event().wait()


def _use_in_threads(cluster: SharedCluster) -> None:
    """Counts requests to the store, and ends ranks instead of the process."""
    connect, open_store = rendezvous.connect_store, rendezvous.open_store

    def counted_connect(world: World, address: str) -> Any:
        return CountingStore(connect(world, address), cluster, world.rank)

    def counted_open(world: World, *arguments: Any) -> Any:
        store = open_store(world, *arguments)
        return store if isinstance(store, CountingStore) else CountingStore(
            store, cluster, world.rank)

    def end_rank(watch: Watch, failure: Failure) -> NoReturn:
        if f"rank {LOST} (" not in str(failure):
            cluster.surprises.value += 1
            print(f"rank {watch._board.world.rank} says: {failure}", file=sys.stderr, flush=True)
        cluster.ended[watch._board.world.rank] = time.monotonic()
        raise SystemExit
    rendezvous.connect_store, rendezvous.open_store = counted_connect, counted_open
    rank_info.code_digest = functools.cache(rank_info.code_digest)  # read once a process
    Watch._end_process = end_rank  # type: ignore[method-assign, assignment]


def _live(cluster: SharedCluster, rank: int) -> None:
    world = World(rank, cluster.size, "127.0.0.1", cluster.port, "flags")
    settings = Settings(workload="none", timeout=cluster.patience)
    progress, stop = Progress(), Stop()
    with joined(world, settings, JOIN_SECONDS, progress, stop) as (board, ranks):
        node = Node(world, torch.device("cpu"), 1, "none", ranks, progress, stop, board.store)
        node.agree("data", "the same")
        node.agree("initial weights", "the same")
        cluster.joined[rank] = time.monotonic()
        _step(cluster, rank, progress)


def _step(cluster: SharedCluster, rank: int, progress: Progress) -> None:
    """Passes from step to step, until the rank is lost or a verdict ends it.

    A neighbour of a killed rank sees its connection break.
    """
    progress.epoch, progress.phase, progress.has_stepped = 1, "forward", True
    neighbour = rank == LOST + 1
    moved = time.monotonic()
    while not cluster.ended[rank]:
        time.sleep(LOOK_SECONDS if neighbour else STEP_SECONDS)
        if neighbour and cluster.is_broken.value:
            raise dist.DistError("gloo: connection closed by peer")
        if time.monotonic() - moved >= STEP_SECONDS and not (rank == LOST
                                                             and cluster.is_stuck.value):
            progress.iteration, moved = progress.iteration + 1, time.monotonic()
    threading.Event().wait()
