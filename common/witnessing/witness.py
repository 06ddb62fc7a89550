"""A witness beside any training loop on several ranks: it names what silently trains wrongly.

    with witness(model, optimizer, loader):
        for epoch in range(10): ...             # a loop of your own, as it is

    .venv/bin/torchrun --nproc-per-node 2 examples/own_loop.py all-reduce

It reads weights, gradients and inputs and draws no random numbers: what is learned is the same.
Beside VGG-11 under DDP (two ranks, 64 images each, float32, one thread a rank: 0.94 s of processor
time a step, n = 42) a batch costs 0.8 ms and a comparison 22 ms, 0.3 % of a step in all; its
threads take 0.1 % of a core.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store
from torch.optim import Optimizer

from common.cluster.addresses import local_address_towards, resolve
from common.cluster.board import Board, is_broken_collective
from common.cluster.rank_info import RankInfo
from common.cluster.stopping import Stop
from common.cluster.watch import Watch
from common.core.console import console, mark
from common.core.failures import Failure, RanksDisagree, UsageError
from common.core.progress import FINISHED, Progress, process_progress
from common.core.uncaught import told_alone
from common.core.world import World
from common.data.loaders import length_of
from common.witnessing.observer import Found, Observer
from common.witnessing.rows import uneven
from common.witnessing.standstill import Standstill

EVERY = 20
TIMEOUT = 300.0
SILENCE_SECONDS = 20.0  # of a rank that is stopped; a killed one's connections break at once
_entered = itertools.count(1)


@contextmanager
def witness(model: nn.Module, optimizer: Optimizer, loader: Any = None, *, every: int = EVERY,
            timeout: float = TIMEOUT, strict: bool = False,
            progress: Progress | None = None) -> Iterator[Observer | None]:
    """A context for a loop that trains replicas of `model`; every rank of the group must enter.

    Raises RanksDisagree, on every rank, when replicas begin with other weights, drift, are averaged
    by nobody, or get the same batches; UsageError for an empty loader. Weights are compared before
    the first two steps, every `every` steps and at the end; those that are averaged now and then
    must be equal once in `every` steps. A rank that is lost, fails, stays `timeout` seconds in one
    place, or has fewer batches than another that waits for it, is named on every rank: since these
    may be blocked, their processes end with that sentence. What may be meant so draws a warning (a
    sampler without set_epoch; a first epoch of the same samples in another order); if `strict`,
    the second is a failure too, and batches must be as many on all ranks, and of equal sizes.
    `model` is the one that the loop calls; `progress` is for a loop that says where it is. On one
    rank it yields None.
    """
    with told_alone():
        if not dist.is_initialized() or dist.get_world_size() == 1:
            _require_group(os.environ)
            _require_batches([length_of(loader)], strict)
            yield None
            return
        with _several_ranks(model, optimizer, loader, every, timeout, strict, progress) as observer:
            yield observer


@contextmanager
def _several_ranks(model: nn.Module, optimizer: Optimizer, loader: Any, every: int, timeout: float,
                   strict: bool, progress: Progress | None) -> Iterator[Observer]:
    world = World(dist.get_rank(), dist.get_world_size())
    prefix, group = f"witness{next(_entered)}", _group_store()

    def connect() -> Store:
        return PrefixStore(prefix, group.clone())

    process_progress().mark, say = mark(world), console(world)
    board = Board(connect(), world, say, time.monotonic() + timeout, longer="timeout=")
    observer = Observer(model, optimizer, loader, board.store, world, every, strict, say)
    progress = progress or observer.here
    lengths: list[int | None] = []
    with (_all_or_none(board), _explained(lengths),
          Watch(board, connect, timeout, Stop(), progress, SILENCE_SECONDS) as watch):
        lengths += _meet(board, watch, loader)
        _require_batches(lengths, strict)
        with observer, _standstill(connect, world, observer, model):
            yield observer
            progress.phase = FINISHED
            observer.conclude()


def _standstill(connect: Callable[[], Store], world: World, observer: Observer,
                model: nn.Module) -> AbstractContextManager:
    """Finds ranks that wait for each other for ever, over gloo: the kernel sees their bytes."""
    if "gloo" not in str(dist.get_backend_config()) or any(p.is_cuda for p in model.parameters()):
        return nullcontext()
    port = getattr(_bare(_group_store()), "port", 0)
    return Standstill(connect, port, world, observer.here, observer.seen.length)


def _bare(store: Store) -> Any:
    """The store itself, without its prefix; it may listen on a port of a host."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _group_store() -> Store:
    assert dist.group.WORLD is not None
    return dist.group.WORLD.get_group_store()


def _require_group(environment: Mapping[str, str]) -> None:
    """Raises UsageError where a launcher started several ranks that would not know each other."""
    ranks = environment.get("WORLD_SIZE", "1")
    if not dist.is_initialized() and ranks not in ("", "1"):
        raise UsageError(f"WORLD_SIZE is {ranks}, but there is no process group: {ranks} ranks "
                         "would train separate models. Call torch.distributed.init_process_group() "
                         "first")


def _meet(board: Board, watch: Watch, loader: Any) -> list[int | None]:
    """The lengths of all ranks' loaders, by rank; the watch learns the ranks' names."""
    me = [socket.gethostname(), os.getpid(), _address(), length_of(loader)]
    ranks = board.collect("the witness's start", me, list,
                          hint=": every rank must enter `with witness(...)`, or call train_model")
    watch.links.ranks = [RankInfo(rank, host, pid, address, "")
                         for rank, (host, pid, address, _) in enumerate(ranks)]
    watch.names = [f"rank {rank} ({host}, pid {pid})" for rank, (host, pid, *_) in enumerate(ranks)]
    return [length for *_, length in ranks]


def _address() -> str:
    """The address by which the other ranks most likely know this machine; "" if unknown."""
    store = _bare(_group_store())
    try:
        return local_address_towards(resolve(store.host), store.port)
    except (AttributeError, Failure):
        return ""


def _require_batches(lengths: Sequence[int | None], strict: bool) -> None:
    """Raises UsageError for a loader without batches; when `strict` also without a length."""
    for rank, length in enumerate(lengths):
        whose = f"the loader of rank {rank}" if len(lengths) > 1 else "the loader"
        if length == 0:
            raise UsageError(f"{whose} is empty: it has no batch to train on. Is its dataset, or "
                             "this rank's part of it, smaller than a batch, with drop_last=True?")
        if length is None and strict:
            raise UsageError(f"{whose} has no length, as a generator has none, and could be run "
                             "through only once: give a DataLoader, or a list of batches")
    if strict and (sentence := uneven(lengths)):
        raise RanksDisagree(sentence)


@contextmanager
def _explained(lengths: Sequence[int | None]) -> Iterator[None]:
    """Explains a collective that breaks though no rank is lost by uneven loaders, if they are."""
    try:
        yield
    except RuntimeError as error:
        if is_broken_collective(error) and (sentence := uneven(lengths)):
            raise RanksDisagree(sentence) from error
        raise


@contextmanager
def _all_or_none(board: Board) -> Iterator[None]:
    """Ends all ranks' loops, with one sentence, when one rank's fails; the leader leaves last."""
    try:
        yield
    except Found as failure:
        board.leave()
        if board.world.is_leader:  # for a rank that is blocked and was not told
            board.publish(failure)
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        board.fail(error)
    finally:
        board.leave()
