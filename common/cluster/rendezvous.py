"""How the ranks find each other: the store that rank 0 serves, the claims, and who is who.

Everything here speaks through torch's TCPStore, before any process group exists.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from common.cluster.board import POLL_SECONDS
from common.cluster.master_port import (
    REMARK_SECONDS,
    STORE_TIMEOUT,
    before,
    serve_store,
    wait_for_master,
)
from common.core.failures import PeerLost, RanksDisagree
from common.core.provenance import code_digest, versions
from common.core.settings import Settings, differences
from common.core.world import World

GRACE_SECONDS = 1.0


def open_store(world: World, address: str, deadline: float, say: Callable[[str], None]) -> Store:
    """A connection to the run's store; the leader serves it first. Every rank must call.

    `deadline` is a time.monotonic() value. Raises PeerLost when no store of rank 0 answers by then,
    UsageError when another program holds the port, and RanksDisagree when the store belongs to a
    job with another token; that job then goes on.
    """
    if world.is_leader and not world.store_is_served:
        return _enter(serve_store(address, world.master_port), world, address, deadline)
    wait_for_master(world, address, deadline, say)
    return before(deadline + GRACE_SECONDS,
                  lambda: _enter(connect_store(world, address), world, address, deadline),
                  f"{address}:{world.master_port}")


def connect_store(world: World, address: str) -> Store:
    """One more connection to a store that is being served."""
    return TCPStore(address, world.master_port, is_master=False, timeout=STORE_TIMEOUT)


def _enter(store: Store, world: World, address: str, deadline: float) -> Store:
    """This attempt's part of the store, once its token is known to be this job's.

    The leader leaves the token's digest; the others compare theirs before they say a word.
    """
    store = PrefixStore(f"attempt{world.attempt}", store)
    digest = hashlib.sha256(f"token {world.token}".encode()).hexdigest()
    if world.is_leader:
        store.set("token", digest)
    while not store.check(["token"]):
        if time.monotonic() > deadline:
            raise PeerLost(f"{address}:{world.master_port} answers, but no rank 0 has come there: "
                           "is rank 0 running?")
        time.sleep(POLL_SECONDS)
    if store.get("token").decode() != digest:
        raise RanksDisagree(f"rank {world.rank} on {socket.gethostname()} has another --token than "
                            f"the job at {address}:{world.master_port}: give all ranks of a job "
                            "the same, and each job a --master-port of its own")
    return store


def my_card(world: World, settings: Settings, address: str, interface: str) -> dict:
    """What this rank tells the others about itself: plain values, ready for JSON."""
    return {
        "rank": world.rank, "size": world.size, "host": socket.gethostname(), "pid": os.getpid(),
        "address": address, "interface": interface, "machine": _machine_id(),
        "cores": len(os.sched_getaffinity(0)), "gpus": torch.cuda.device_count(),
        "versions": versions(), "code": code_digest(), "settings": settings.shared(),
    }


def _machine_id() -> str:
    """Equal for ranks that share one machine's cores, whatever their hosts are called."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def claim_rank(store: Store, world: World, card: dict) -> None:
    """Takes this rank's place. Raises RanksDisagree when it is taken, or world sizes differ."""
    here = f"{card['host']} (pid {card['pid']})"
    said = store.compare_set("size", "", f"{world.size} rank {world.rank} on {here}").decode()
    size, _, who = said.partition(" ")
    if int(size) != world.size:
        raise RanksDisagree(f"rank {world.rank} on {here} was started for {world.size} nodes but "
                            f"{who} for {size}: give every node the same --num-nodes")
    holder = store.compare_set(f"claim/{world.rank}", "", here).decode()
    if holder != here:
        raise RanksDisagree(f"two processes claim rank {world.rank}: {holder} and {here}; "
                            "give each node a --rank of its own")
    store.set(f"card/{world.rank}", json.dumps(card))


def wait_for_cards(store: Store, world: World, deadline: float, say: Callable[[str], None],
                   hint: str = "") -> list[dict]:
    """Every rank's card, by rank. Says who is missing while it waits; raises PeerLost at last.

    `hint` says why they may be missing.
    """
    remark = time.monotonic() + REMARK_SECONDS
    missing = list(range(world.size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"card/{rank}"])]
        report = (f"{world.size - len(missing)} of {world.size} joined, waiting for "
                  f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}")
        if missing and time.monotonic() > deadline:
            raise PeerLost(f"gave up: {report}; start the missing, or raise --timeout{hint}")
        if missing and time.monotonic() > remark:
            say(report + hint)
            remark += REMARK_SECONDS
        time.sleep(POLL_SECONDS)
    return [json.loads(store.get(f"card/{rank}")) for rank in range(world.size)]


def compare_cards(cards: list[dict]) -> None:
    """Raises RanksDisagree naming the first rank that differs from the leader, and in what."""
    leader = cards[0]
    for card in cards[1:]:
        for topic in ("code", "versions", "settings"):
            if card[topic] != leader[topic]:
                raise RanksDisagree(_difference(topic, leader, card))


def _difference(topic: str, leader: dict, card: dict) -> str:
    who = f"rank {card['rank']} on {card['host']}"
    if topic == "code":
        return (f"{who} runs other code ({card['code']}) than rank 0 on {leader['host']} "
                f"({leader['code']}): bring both to the same commit")
    pairs = [f"{name} is {card[topic].get(name)} there and {leader[topic].get(name)} on rank 0"
             for name in differences(leader[topic], card[topic])]
    return f"{who} and rank 0 on {leader['host']} differ in {topic}: {'; '.join(pairs)}"
