"""From World to a running process group, and safely out of it again.

    with process_group(world, settings) as node:
        node.agree("data", dataset.digest)
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from common.cluster import addresses, board, rendezvous
from common.cluster.devices import (
    choose_backend,
    choose_device,
    count_gpus,
    keep_freed_memory,
    use_threads,
)
from common.cluster.signals import Stop, process_stop
from common.cluster.watch import SILENCE_AFTER_ERROR_SECONDS, Watch, learn_saved
from common.core.console import console, mark
from common.core.failures import Failure, PeerLost, RanksDisagree, first_line
from common.core.progress import FINISHED, Progress
from common.core.settings import Settings
from common.core.world import World

START_FACTOR = 2.0
LINGER_SECONDS = 5.0


@dataclass(frozen=True)
class Node:
    """This process, ready to train: where it computes, and who the others are."""

    world: World
    device: torch.device
    threads: int
    backend: str = "none"
    cards: list[dict] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)
    store: Store | None = None

    @property
    def progress(self) -> Progress:
        return self.stop.progress

    @property
    def ranks_here(self) -> int:
        """The number of ranks on this machine, this one counted."""
        machines = [card["machine"] for card in self.cards]
        return machines.count(machines[self.world.rank]) if machines else 1

    def wait_for_device(self) -> None:
        """Returns when the GPU has done all that was asked of it; at once on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def note_saved(self, path: str) -> None:
        """Remembers the last good checkpoint, "" for none; the leader tells the others."""
        self.progress.saved = path
        if self.store is not None and self.world.is_leader:
            self.store.set("saved", path)

    def agree(self, topic: str, value: str) -> None:
        """Returns when every rank has said the same `value`. Every rank must call.

        Raises RanksDisagree naming the first rank that differs from the leader, and both values.
        """
        if self.store is None:
            return
        self.store.set(f"agree/{topic}/{self.world.rank}", value)
        values = [_patient_get(self.store, f"agree/{topic}/{rank}")
                  for rank in range(self.world.size)]
        for rank, other in enumerate(values):
            if other != values[0]:
                raise RanksDisagree(
                    f"rank {rank} on {self.cards[rank]['host']} has other {topic} ({other}) than "
                    f"rank 0 on {self.cards[0]['host']} ({values[0]})")


def lone_node(settings: Settings) -> Node:
    """One node that needs no others: no store, no process group, no port."""
    keep_freed_memory()
    device = choose_device(settings.device, 0, [{"machine": "", "gpus": count_gpus()}])
    return Node(World(), device, use_threads(settings.threads, ranks_here=1),
                stop=process_stop())


@contextmanager
def process_group(world: World, settings: Settings) -> Iterator[Node]:
    """Joins all ranks, checks that they mean the same run, and forms the process group.

    Yields the Node; always tears down. Whatever fails on one rank ends all of them within seconds
    with one sentence and one exit code. Every rank must enter. Raises the Failures of the design.
    """
    say = console(world)
    process_stop().progress.phase = "joining the other ranks"
    process_stop().mark, process_stop().is_over = mark(world), False
    deadline = time.monotonic() + START_FACTOR * settings.timeout
    _warn_when_alone(world, settings, say)
    address = addresses.resolve(world.master_address)
    addresses.warn_of_public_address(address, say)
    place = addresses.choose_interface(settings.interface, address, world.master_port)
    store = rendezvous.open_store(world, address, deadline, say)
    watch = Watch(partial(rendezvous.connect_store, world, address), world, settings.timeout,
                  process_stop())
    watch.start()
    try:
        cards = _join(store, world, settings, place, deadline, say)
        watch.names = [f"rank {card['rank']} ({card['host']}, pid {card['pid']})"
                       for card in cards]
        yield _form_group(store, world, settings, cards, watch)
        watch.progress.phase = FINISHED
        _count(store, world, "finished", world.size, every_rank_waits=True)
        _conclude(store)
    except BaseException as error:
        _share_failure(error, store, world, watch)
        raise
    finally:
        watch.stop()
        if dist.is_initialized():
            dist.destroy_process_group()
    _count(store, world, "closed", world.size)


def _warn_when_alone(world: World, settings: Settings, say: Callable[[str], None]) -> None:
    """A node that was told nothing of others trains a model of its own, and nobody notices."""
    if world.source == "alone" and settings.parallel != "data-parallel":
        say("warning: this node trains by itself, and four nodes started like this train four "
            "separate models; for one model give every node --master-ip, --num-nodes and --rank, "
            "or start the ranks with torchrun or srun (--num-nodes 1 says that one node is meant)")


def _join(store: Store, world: World, settings: Settings, place: tuple[str, str],
          deadline: float, say: Callable[[str], None]) -> list[dict]:
    store.add("joined", 1)
    card = rendezvous.my_card(world, settings, place[1], place[0])
    rendezvous.claim_rank(store, world, card)
    hint = addresses.loopback_hint(world.master_address)
    cards = rendezvous.wait_for_cards(store, world, deadline, say, hint)
    rendezvous.compare_cards(cards)
    return cards


def _form_group(store: Store, world: World, settings: Settings, cards: list[dict],
                watch: Watch) -> Node:
    neighbours = [card["rank"] for card in cards
                  if card["machine"] == cards[world.rank]["machine"]]
    keep_freed_memory()
    device = choose_device(settings.device, neighbours.index(world.rank), cards)
    backend = choose_backend(settings.backend, settings.device, cards)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", cards[world.rank]["interface"])
    os.environ.setdefault("NCCL_SOCKET_IFNAME", cards[world.rank]["interface"])
    try:
        dist.init_process_group(
            backend, store=PrefixStore("group", store), rank=world.rank, world_size=world.size,
            timeout=timedelta(seconds=settings.collective_timeout))
    except RuntimeError as error:
        raise PeerLost(f"rank {world.rank} on {socket.gethostname()} met all others at the master "
                       f"but cannot connect to them ({first_line(error)}): open the ports "
                       "between the nodes, not only the master's, or choose --interface") from error
    threads = use_threads(settings.threads, len(neighbours))
    return Node(world, device, threads, backend, cards, process_stop(), store)


def _patient_get(store: Store, key: str) -> str:
    """Waits for a key without limit: a lost rank is the watch's business, a slow one welcome."""
    while not store.check([key]):
        time.sleep(board.POLL_SECONDS)
    return store.get(key).decode()


def _count(store: Store, world: World, stage: str, among: int,
           every_rank_waits: bool = False) -> None:
    """Counts this rank in at `stage`; the leader, who serves the store, waits for all `among`."""
    deadline = float("inf") if every_rank_waits else time.monotonic() + LINGER_SECONDS
    try:
        arrived = store.add(stage, 1)
        while arrived < among and time.monotonic() < deadline:
            if not (every_rank_waits or world.is_leader):
                return
            time.sleep(board.POLL_SECONDS)
            arrived = store.add(stage, 0)
    except RuntimeError:
        return  # the store is gone, so its server has seen everyone out


def _conclude(store: Store) -> None:
    try:
        board.conclude(store)
    except RuntimeError:
        pass  # the store is gone, so its server has concluded
    process_stop().is_over = True


def _share_failure(error: BaseException, store: Store, world: World, watch: Watch) -> None:
    """Tells all ranks what failed here, and raises the verdict: the first failure that was told.

    A broken collective has its cause in another rank: the watch gets time to name that one, which
    ends this process. An error that is no Failure is a fault here, and returns to be raised.
    """
    if broken := _is_broken_collective(error):
        watch.collective_failed = True
        time.sleep(SILENCE_AFTER_ERROR_SECONDS + LINGER_SECONDS)
    watch.stop()
    here = f"rank {world.rank} on {socket.gethostname()}"
    told = error if isinstance(error, Failure) else PeerLost(f"{here} failed: {first_line(error)}")
    try:
        verdict = board.publish(store, told)
        learn_saved(store, watch.progress)
        _count(store, world, "left", among=store.add("joined", 0))  # some may never have come
    except RuntimeError:
        verdict = told  # the leader has left already
    if isinstance(error, Failure) or broken:
        raise verdict from error


def _is_broken_collective(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
