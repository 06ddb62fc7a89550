"""Before the first run on a cluster: does everything work, and if not, what is to fix first?

Three phases: over the store alone, who is there and with what; over plain sockets, pair by pair,
which links connect and how fast they are; and only if all do, the process group. What each rank
finds is shared, so every rank draws the same conclusion. scripts/preflight.py is the command.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore

from common.cluster import addresses, rendezvous
from common.cluster.all_reduce_speed import measure_all_reduce
from common.cluster.board import Board
from common.cluster.devices import choose_backend, choose_device
from common.core.console import console
from common.core.failures import DataError, Failure, PeerLost, RanksDisagree, Verdict, first_line
from common.core.settings import Settings
from common.options.workloads import find_workload
from common.preflight.findings import Findings, broken_link, measurements, slow_link
from common.preflight.links import Link, LinkServer, meetings, probe
from common.preflight.node_facts import node_facts

PROBE_SECONDS = 0.3
ALL_PROBES_SECONDS = 10.0
GROUP_SECONDS = 15.0


def examine(findings: Findings) -> None:
    """Fills `findings`. Every rank must call it; it ends within --timeout seconds.

    Raises the first thing to fix, the same on every rank; also then `findings` holds what is known.
    """
    world, settings = findings.world, findings.settings
    now = time.monotonic()
    address = addresses.resolve(world.master_address)
    place = addresses.choose_interface(settings.interface, address, world.master_port)
    store = rendezvous.open_store(world, address, now + settings.timeout / 2, console(world))
    board = Board(store, world, now + settings.timeout, console(world))
    try:
        with LinkServer(place[1]) as server:
            _join(findings, board, place, server.port, now + settings.timeout / 2)
            _compare(findings, board)
            _probe_all(findings, board)
        if not any(isinstance(problem, PeerLost) for problem in findings.problems):
            _form_group(findings, board)
        if slow := slow_link(findings):
            findings.problems.append(slow)
    except Exception as error:
        findings.problems.insert(0, board.publish(error))
        if not isinstance(error, Failure | RuntimeError):
            raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        board.leave()
    if findings.problems:
        raise findings.problems[0]


def keep_measurements(findings: Findings) -> None:
    """Writes preflight.json, for scripts/predict.py, to where runs will write. On the leader.

    A folder that cannot be written is said, and no more: the links are sound all the same.
    """
    path = findings.settings.output_dir / "preflight.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measurements(findings), indent=1) + "\n")
    except OSError as error:
        print(f"{path} is not kept: {error.strerror}", file=sys.stderr, flush=True)


def _join(findings: Findings, board: Board, place: tuple[str, str], port: int,
          deadline: float) -> None:
    """Everybody's card, with facts and the port of the link server."""
    world, settings = findings.world, findings.settings
    interface, address = place
    master = addresses.resolve(world.master_address)
    card = {**rendezvous.my_card(world, settings, address, interface), "port": port,
            **node_facts(settings.output_dir, interface, master)}
    try:
        rendezvous.claim_rank(board.store, world, card)
        findings.cards = board.share("card", card, deadline)
    except PeerLost as error:
        hint = addresses.loopback_hint(world.master_address) if world.is_leader else ""
        raise PeerLost(f"{error}{hint}") from None
    finally:
        findings.cards = findings.cards or board.posted("card")


def _compare(findings: Findings, board: Board) -> None:
    """Code, versions, settings and data: each first difference is a problem."""
    try:
        rendezvous.compare_cards(findings.cards)
    except RanksDisagree as problem:
        findings.problems.append(problem)
    shared = board.share("data", _data(findings.settings))
    for card, data in zip(findings.cards, shared, strict=True):
        card["data"] = data["digest"]
    for rank, data in enumerate(shared):
        if data["exit_code"]:
            findings.problems.append(Verdict(f"{findings.name(rank)}: {data['sentence']}",
                                             data["exit_code"]))
            return
        if data["digest"] != shared[0]["digest"]:
            findings.problems.append(RanksDisagree(
                f"{findings.name(rank)} has other data ({data['digest']}) than "
                f"{findings.name(0)} ({shared[0]['digest']})"))
            return


def _data(settings: Settings) -> dict:
    """This node's data in a few words: its digest, or why there is none."""
    row = find_workload(settings.workload)
    try:
        digests = [row.load(split, settings.data_dir).digest for split in ("train", "test")]
    except DataError as error:
        return {"digest": "none", "sentence": str(error), "exit_code": error.exit_code}
    return {"digest": " ".join(digests), "sentence": "", "exit_code": 0}


def _probe_all(findings: Findings, board: Board) -> None:
    """Every rank probes every other, one at a time; a link that does not work is a problem."""
    me, cards = findings.world.rank, findings.cards
    rounds = meetings(len(cards))
    seconds = min(PROBE_SECONDS, ALL_PROBES_SECONDS / (2 * max(1, len(rounds))))
    row = [Link() for _ in cards]
    for count, pairs in enumerate(rounds):
        for way in (0, 1):
            board.share(f"round {count}.{way}", me)  # all start together: nobody disturbs another
            for pair in pairs:
                if pair[way] == me:
                    other = pair[1 - way]
                    row[other] = probe(cards[other]["address"], cards[other]["port"], seconds)
    shared = board.share("links", [asdict(link) for link in row])
    findings.links = [[Link(**link) for link in links] for links in shared]
    if broken := broken_link(findings):
        findings.problems.append(broken)


def _form_group(findings: Findings, board: Board) -> None:
    """The process group of a real run, and how fast it all-reduces."""
    world, settings, cards = findings.world, findings.settings, findings.cards
    if world.size == 1:
        return
    findings.backend = choose_backend(settings.backend, settings.device, cards)
    here = [card["rank"] for card in cards if card["machine"] == cards[world.rank]["machine"]]
    device = choose_device(settings.device, here.index(world.rank), cards)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, cards[world.rank]["interface"])
    try:
        dist.init_process_group(
            findings.backend, store=PrefixStore("group", board.store), rank=world.rank,
            world_size=world.size, timeout=timedelta(seconds=GROUP_SECONDS))
        findings.speeds = measure_all_reduce(device)
    except RuntimeError as error:
        raise PeerLost(f"all pairs connect, but {findings.backend} does not get through on "
                       f"{findings.name(world.rank)} ({first_line(error)}): look at "
                       "GLOO_SOCKET_IFNAME and --interface") from error
    board.share("group", findings.backend)
