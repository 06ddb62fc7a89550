"""From World to a running process group, and safely out of it again.

    with process_group(world, settings) as node:
        node.agree("data", dataset.digest)
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore

from common.cluster import addresses, devices, rendezvous
from common.cluster.board import Board, is_broken_collective
from common.cluster.devices import keep_freed_memory, use_threads
from common.cluster.elastic import elastic
from common.cluster.fate import fate_of_rank
from common.cluster.heartbeats import SILENCE_SECONDS
from common.cluster.node import Node
from common.cluster.pairs import exchange_greetings
from common.cluster.rank_info import RankInfo, require_one_run
from common.cluster.stopping import Stop, process_stop
from common.cluster.watch import Watch
from common.core.console import console
from common.core.failures import PeerLost, first_line
from common.core.progress import CONNECTING, FINISHED, Progress, process_progress
from common.core.world import BY_HAND, World
from common.settings.settings import Settings
from common.settings.user_code import own_errors

START_FACTOR = 2.0
FORMING_FACTOR = 4.0
ELASTIC_SILENCE_SECONDS = 4.0  # to be wrong costs a second or two, and not the run


@contextmanager
def one_node(settings: Settings) -> Iterator[Node]:
    """The node of Part One, which needs no other: no store, no process group, no port."""
    keep_freed_memory()
    device = devices.choose_device(settings.device, 0, devices.count_gpus() > 0)
    node = Node(World(), device, use_threads(settings.threads, ranks_here=1),
                progress=process_progress(), stop=process_stop())
    with own_errors(is_broken_collective, workload=settings.workload):
        yield node


@contextmanager
def process_group(world: World, settings: Settings) -> Iterator[Node]:
    """Joins all ranks, checks that they were started for one run, and forms the process group.

    Yields the Node; always tears down. Whatever fails on one rank ends all of them within seconds
    with one sentence and one exit code. Every rank must enter. Raises that Failure.
    """
    if not world.is_elastic:
        say_what_may_be_a_mistake(world, settings)
    member = elastic()
    seconds = FORMING_FACTOR * member.forming_seconds if member else (
        START_FACTOR * settings.timeout)
    with (joined(world, settings, seconds) as (board, ranks),
          own_errors(is_broken_collective, f"rank {world.rank}: ", settings.workload)):
        yield form_group(board, ranks, settings, settings.collective_timeout)


@contextmanager
def joined(world: World, settings: Settings, seconds: float, progress: Progress | None = None,
           stop: Stop | None = None) -> Iterator[tuple[Board, Sequence[RankInfo]]]:
    """All that `process_group` does but the group: joins, compares, watches, and ends together.

    Ranks have so many `seconds` to join. `progress` and `stop` are the process's own unless given.
    """
    progress, stop = progress or process_progress(), stop or process_stop()
    progress.phase, stop.is_over = "joining the other ranks", False
    deadline = time.monotonic() + seconds
    connect = partial(rendezvous.connect_store, world, addresses.resolve(world.master_address))
    with (rendezvous.join(world, settings, deadline) as (board, me),
          Watch(board, connect, settings.timeout, stop, progress,
                ELASTIC_SILENCE_SECONDS if elastic() else SILENCE_SECONDS) as watch):
        ranks = rendezvous.exchange(board, me, deadline, require_one_run)
        known = range(world.size) if world.is_leader else (0, world.rank)
        watch.names = {rank: f"rank {each.launched} ({each.host}, pid {each.pid})"
                       for rank, each in enumerate(ranks) if rank in known}
        watch.links.ranks = ranks
        watch.heartbeats.fate = lambda rank: fate_of_rank(ranks[rank], me)
        yield board, ranks
        progress.phase = FINISHED
        with contextlib.suppress(RuntimeError):  # the leader has left, as all ranks have finished
            board.collect("the run", True, lambda values: None)
        board.conclude()
        stop.is_over = True
        if member := elastic():
            member.forget()


def say_what_may_be_a_mistake(world: World, settings: Settings) -> None:
    """Where no launcher and no flag has told the world, it may not be the one that is meant."""
    if world.source == BY_HAND and world.size > 1:
        console(world)(f"{BY_HAND} say that this is rank {world.rank} of {world.size}, with rank 0 "
                       f"at {world.master_address}: unset them if they are left over")
    elif world.source in ("alone", BY_HAND) and settings.parallel != "data-parallel":
        console(world)(
            "warning: this node trains by itself, and four nodes started like this train four "
            "separate models; for one model give every node --master-ip, --num-nodes and --rank, "
            "or start the ranks with torchrun, srun or mpirun (--num-nodes 1 says that one node is "
            "meant)")


def form_group(board: Board, ranks: Sequence[RankInfo], settings: Settings,
               seconds: float) -> Node:
    """Forms torch's process group, whose collectives time out after `seconds`.

    Every rank must call. Raises PeerLost when the ranks cannot connect to each other, or exchange
    no messages then.
    """
    world, process_progress().phase = board.world, CONNECTING
    here, gpu, enough_gpus = rendezvous.neighbours(board, ranks[world.rank])
    keep_freed_memory()
    device = devices.choose_device(settings.device, gpu, enough_gpus)
    backend = devices.choose_backend(settings.backend, settings.device, enough_gpus)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, ranks[world.rank].interface)
    try:
        dist.init_process_group(
            backend, store=PrefixStore("group", board.store), rank=world.rank,
            world_size=world.size, timeout=_connecting(timedelta(seconds=seconds)))
    except RuntimeError as error:
        if elastic():
            _count_groups_anew()
        raise PeerLost(f"{ranks[world.rank]} has reached the master, but {backend} cannot connect "
                       f"it to the other ranks ({first_line(error)}): open the ports between the "
                       "nodes, not only the master's, or choose --interface") from error
    _connected(dist.group.WORLD)
    if backend == "gloo":
        exchange_greetings(ranks, world.rank, min(seconds, settings.timeout))
    return Node(world, device, use_threads(settings.threads, len(here)), backend, ranks,
                process_progress(), process_stop(), board.store, len(here))


def new_group(timeout: timedelta) -> Any:
    """Another process group of all ranks, whose collectives time out after `timeout`.

    Every rank must call it, in the same order as other collectives.
    """
    if elastic():
        dist.barrier()  # so that nobody connects late
    group = dist.new_group(timeout=_connecting(timeout))
    _connected(group)
    return group


def _connecting(timeout: timedelta) -> timedelta:
    """How long a rank may wait until all are connected; torch can change it from 2.15 on."""
    member = elastic()
    return (min(timeout, timedelta(seconds=member.forming_seconds))
            if member and hasattr(dist, "set_timeout") else timeout)


def _connected(group: Any) -> None:
    """An elastic run leaves some collectives alone: torch gives them up after its patience."""
    if (member := elastic()) and hasattr(dist, "set_timeout"):
        dist.set_timeout(timedelta(seconds=member.patience), group)


def _count_groups_anew() -> None:
    """Lets torch name this process's next group as it does on a rank that has formed none yet.

    It names groups by a count, which only the end of a group that was formed sets to 0.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
