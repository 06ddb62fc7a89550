"""Probing links, deciding which is broken or slow, and measuring an all-reduce.

Mutations that turn this red: one total less in pairings; `sends` only in slow_link; count
links of one address; compare with the maximum instead of the median; use algorithm bandwidth for
bus; drop the reply's deadline in _answer; leave the published verdict out of Board.share.
"""

import re
import socket
import threading
import time
from collections import Counter

import pytest
import torch
from torch.distributed import HashStore

from common.cluster.all_reduce_speed import GRADIENT_BYTES, AllReduceSpeed, measure_all_reduce
from common.cluster.board import Board
from common.cluster.rank_info import RankInfo
from common.core.failures import PeerLost, Verdict
from common.core.world import World
from common.options.command_line import parse_command_line
from common.preflight import examine
from common.preflight.findings import Findings, broken_link, slow_link
from common.preflight.links import Link, LinkServer, pairings, probe
from common.preflight.node_facts import NodeFacts, memory
from tests.facts import says
from tests.ranks import free_port, run_ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_every_pair_comes_once_and_no_rank_twice_in_a_round(size):
    rounds = pairings(size)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert sorted(pairs) == [(a, b) for a in range(size) for b in range(a + 1, size)]
    for together in rounds:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) <= size


def test_a_sound_link():
    with LinkServer("127.0.0.1") as server:
        link = probe("127.0.0.1", server.port, seconds=0.1)
        assert link.connects and link.error == ""
        assert link.bandwidth > 1e6 and 0 < link.round_trip < 1
    assert not probe("127.0.0.1", server.port, seconds=0.1).connects  # and the server is gone


def test_nobody_listens():
    link = probe("127.0.0.1", free_port(), seconds=0.1)
    assert not link.connects and "refused" in link.error


def test_a_peer_that_accepts_and_stays_silent_does_not_hang_the_probe():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = probe("127.0.0.1", silent.getsockname()[1], seconds=0.1)
    assert not link.connects and "timed out" in link.error


def test_a_stray_caller_does_not_disturb_the_server():
    with LinkServer("127.0.0.1") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as stray:
            stray.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert probe("127.0.0.1", server.port, seconds=0.1).connects


def findings(rates: list[list[float]], addresses: list[str] | None = None) -> Findings:
    """Ranks on hosts of their own whose links carry the given Mbit/s."""
    settings, world = parse_command_line("Preflight", ["--workload", "digits-vgg11"])
    ranks = [RankInfo(rank, f"node{rank}", 1,
                      addresses[rank] if addresses else f"10.0.0.{rank}", "eth0")
             for rank in range(len(rates))]
    facts = [NodeFacts.of_this_node(5, settings.output_dir, "lo")] * len(rates)
    links = [[Link(1e-4, rate * 1e6 / 8) for rate in row] for row in rates]
    return Findings(world, settings, ranks, facts, links=links)


def matrix(size: int, **slow: float) -> list[list[float]]:
    """Rates of 1000 Mbit/s; `from2=100` limits what rank 2 sends, `to1=100` what 1 receives."""
    return [[min(slow.get(f"from{a}", 1000), slow.get(f"to{b}", 1000),
                 slow.get(f"pair{a}{b}", 1000)) for b in range(size)] for a in range(size)]


@pytest.mark.parametrize("rates, ranks, rate, direction", [
    (matrix(4, from3=100, to3=100), [3], 100, ""), (matrix(4, from1=94), [1], 94, "send"),
    (matrix(4, to2=94), [2], 94, "receiv"), (matrix(4, pair13=94), [1, 3], 94, ""),
    (matrix(2, pair01=94), [0], 94, ""),
])
def test_the_slow_link_is_named(rates, ranks, rate, direction):
    told = str(slow_link(findings(rates)))
    assert re.findall(r"\bnode(\d)\b", told) == [str(rank) for rank in ranks]
    assert says(told, *(f"rank {rank}" for rank in ranks), f"{rate} Mbit/s") and direction in told


def test_links_that_differ_a_little_are_not_slow():
    assert slow_link(findings([[0, 900, 800], [700, 0, 950], [400, 600, 0]])) is None


def test_the_median_counts_not_the_fastest():
    rates = matrix(5, from4=1000, to4=1000)
    rates[0][1] = rates[1][0] = 9000  # one faster pair makes nobody slow
    assert slow_link(findings(rates)) is None


def test_ranks_that_share_a_machine_do_not_make_the_cable_slow():
    rates = [[0, 20000, 900, 900], [20000, 0, 900, 900],
             [900, 900, 0, 20000], [900, 900, 20000, 0]]
    assert slow_link(findings(rates, ["a", "a", "b", "b"])) is None


def test_broken_links_are_named_and_counted():
    found = findings(matrix(3))
    found.links[1][2] = Link(error="timed out")
    one = str(broken_link(found))
    assert re.findall(r"\brank (\d) on node(\d)", one) == [("1", "1"), ("2", "2")]
    found.links[2][0] = Link(error="refused")
    assert "1" in Counter(str(broken_link(found)).split()) - Counter(one.split())


def test_bus_bandwidth_is_that_of_nccl_tests():
    speed = AllReduceSpeed(size=4_000_000, seconds=0.5, ranks=4)
    assert speed.algorithm_bandwidth == 8e6 and speed.bus_bandwidth == 8e6 * 1.5


def measured() -> list[AllReduceSpeed]:
    return measure_all_reduce(torch.device("cpu"))


def test_all_ranks_measure_the_same_speeds():
    first, *others = run_ranks(3, measured)
    assert all(other == first for other in others)
    assert first[0].ranks == 3 and first[-1].size <= GRADIENT_BYTES


def test_the_board_shares_by_rank_and_names_who_is_missing():
    store = HashStore()
    boards = [Board(store, World(rank, 3), deadline=time.monotonic() + 0.3) for rank in range(3)]
    posts = [threading.Thread(target=boards[rank].share, args=("topic", rank * 10))
             for rank in (1, 2)]
    for post in posts:
        post.start()
    assert boards[0].share("topic", 0) == [0, 10, 20]
    for post in posts:
        post.join()
    with pytest.raises(PeerLost, match=r"\b1 of 3\b.*\bother\b.*\branks 0, 1\b"):
        boards[2].share("other", 1)


def test_the_first_failure_ends_every_wait():
    store = HashStore()
    boards = [Board(store, World(rank, 2)) for rank in range(2)]
    assert boards[0].publish(PeerLost("the cable is out")).exit_code == 75
    with pytest.raises(Verdict, match="cable"):
        boards[1].share("topic", 1)


def test_facts_of_this_machine():
    total, available = memory()
    assert total > available > 0


@pytest.mark.parametrize("found, expected", [
    ([Link(1.0, 2.0), Link(1.0, 5.0)], Link(1.0, 5.0)),
    ([Link(1.0, 5.0), Link(1.0, 2.0)], Link(1.0, 5.0)),
    ([Link(1.0, 5.0), Link(error="lost")], Link(error="lost")),
    ([Link(error="lost")], Link(error="lost"))])
def test_of_two_probes_the_better_counts_and_any_error(found, expected, monkeypatch):
    probes = iter(found)
    monkeypatch.setattr(examine, "probe", lambda *_: next(probes))
    assert examine._better_of_two("127.0.0.1", 1, 0.1) == expected
