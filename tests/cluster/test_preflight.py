"""The preflight on four hosts finds each planted fault, names it, and exits alike on every rank.

Mutations that turn this red: `if False` for `if broken := broken_link(...)` or for `if slow :=
slow_link(...)`; drop require_one_run, or the comparison of digests, from _compare; drop the
comparison with `holder`, or loopback_hint, from exchange; probe only one way of each pair; drop the
verdict from Board.share (two processes with one rank leave the others waiting).
"""

import re
from functools import partial

import pytest

from tests.cluster.box import MASTER, box, needs_firewall, needs_namespaces, with_hosts
from tests.facts import says
from tests.faults.test_start_up import check, other_code, write_images
from tests.ranks import run_programs

PREFLIGHT = "scripts/preflight.py"
pytestmark = needs_namespaces


@pytest.fixture(scope="module")
def hosts():
    with box(4) as four:
        yield four


def preflight(hosts, folder, ranks=(0, 1, 2, 3), flags=(), **faults) -> list:
    """How the preflight ended on the given ranks of four."""
    programs = hosts.cluster(PREFLIGHT, 4, ["--workload", "digits-vgg11", "--threads", "1",
                                         "--output-dir", str(folder / "out"), *flags],
                             folder, **faults)
    return run_programs([programs[rank] for rank in ranks])


def page_of(outcomes) -> str:
    return outcomes[0].output


def measured(outcomes, one: int, other: int) -> list[bool]:
    """True for each matrix of the page that has a number for the path between two ranks."""
    rows = [re.split(" {2,}", line.strip()) for line in page_of(outcomes).splitlines()]
    return [row[1 + other][0].isdigit() for row in rows
            if row[0] == f"rank {one}" and row[1 + one] == "-"]


def test_a_sound_cluster_is_ready(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path)
    assert [outcome.code for outcome in outcomes] == [0] * 4, outcomes
    page = page_of(outcomes)
    assert says(page.splitlines()[-1], "ready", "4 ranks")
    for rank in range(4):
        assert f"node{rank}" in page and f"10.77.0.{rank + 1}  eth0" in page
    assert "36.92 MB" in page and "bus" in page
    said = [line for outcome in outcomes[1:] for line in outcome.output.splitlines()]
    assert not [line for line in said if not line.startswith("[W")]  # torch's own warnings


def test_a_wrong_master_address_on_one_rank(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, flags=["--timeout", "8"],
                         by_rank={2: ["--master-ip", "10.77.0.99"]})
    check(outcomes[2:3], 75, "rank 2 on node2", "rank 0", "10.77.0.99")
    check(outcomes[:2] + outcomes[3:], 75, "3 of 4", "rank 2")
    assert "10.77.0.4" in page_of(outcomes)  # the page says who did join


def test_the_leader_is_not_where_the_master_address_points(hosts, tmp_path):
    outcome, = preflight(hosts, tmp_path, ranks=[0], by_rank={0: ["--master-ip", "10.77.0.2"]})
    check([outcome], 2, "10.77.0.2", "node0", "10.77.0.1")


def test_a_rank_that_is_missing(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, ranks=(0, 1, 2), flags=["--timeout", "4"])
    check(outcomes, 75, "3 of 4", "rank 3")
    *_, verdict = (line for line in page_of(outcomes).splitlines() if "error: " not in line)
    assert says(verdict, "ready", "3 of 4", "rank 3")


def test_two_ranks_with_one_number(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, by_rank={3: ["--rank", "1"]})
    check(outcomes, 3, "rank 1", "node1", "node3")


@needs_firewall
def test_a_blocked_port_pair(hosts, tmp_path):
    drop = "INPUT -s 10.77.0.3 -p tcp --syn -j DROP"
    hosts.run(1, f"iptables -A {drop}")
    outcomes = preflight(hosts, tmp_path)
    hosts.run(1, f"iptables -D {drop}")
    check(outcomes, 75, "rank 2 on node2", "rank 1 on node1", "10.77.0.3", "10.77.0.2", "firewall")
    assert measured(outcomes, 2, 1) == [False, False] and measured(outcomes, 1, 2) == [True, True]


@needs_firewall
def test_large_packets_that_are_lost(hosts, tmp_path):
    drop = "INPUT -s 10.77.0.2 -p tcp -m length --length 700: -j DROP"
    hosts.run(3, f"iptables -A {drop}")
    outcomes = preflight(hosts, tmp_path)
    hosts.run(3, f"iptables -D {drop}")
    check(outcomes, 75, "rank 1 on node1", "rank 3 on node3", "MTU")
    assert measured(outcomes, 1, 3) == [False, True]  # a trip is short


def test_a_slow_link(hosts, tmp_path):
    limit = "tbf rate {} burst 128kb latency 50ms"
    hosts.run(3, f"tc qdisc change dev eth0 root {limit.format('100mbit')}")
    hosts.run_outside(f"tc qdisc change dev link3 root {limit.format('100mbit')}")
    outcomes = preflight(hosts, tmp_path)
    hosts.run(3, f"tc qdisc change dev eth0 root {limit.format('1gbit')}")
    hosts.run_outside(f"tc qdisc change dev link3 root {limit.format('1gbit')}")
    check(outcomes, 75, "rank 3 on node3", "Mbit/s")
    assert "all-reduce" in page_of(outcomes)


def test_other_data_on_one_node(hosts, tmp_path):
    write_images(tmp_path / "one", 10)
    write_images(tmp_path / "other", 20)
    outcomes = preflight(hosts, tmp_path, flags=["--workload", "cifar10-vgg11"], by_rank={
        rank: ["--data-dir", str(tmp_path / ("other" if rank == 2 else "one"))]
        for rank in range(4)})
    check(outcomes, 3, "rank 2 on node2", "data")


@pytest.mark.slow
def test_no_data_on_one_node(hosts, tmp_path):
    write_images(tmp_path / "one", 10)
    (tmp_path / "none" / "train").mkdir(parents=True)
    outcomes = preflight(hosts, tmp_path, flags=["--workload", "cifar10-vgg11"], by_rank={
        rank: ["--data-dir", str(tmp_path / ("none" if rank == 1 else "one"))]
        for rank in range(4)})
    check(outcomes, 4, "rank 1 on node1", tmp_path / "none/train")


def test_other_code_on_one_node(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, before={1: other_code})
    check(outcomes, 3, "rank 1 on node1", "code", "commit")
    assert "all-reduce" in page_of(outcomes)  # the rest is examined all the same


@pytest.mark.slow
def test_other_flags_on_one_node(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, by_rank={1: ["--seed", "7"]})
    check(outcomes, 3, "rank 1 on node1", "seed", 7, 1, "rank 0")


DEBIAN = "127.0.0.1 localhost\n127.0.1.1 {name}\n" + "".join(
    f"10.77.0.{rank + 1} node{rank}\n" for rank in range(4))


def debian_hosts() -> dict:
    """The hosts files of Debian's installer: the host's own name means 127.0.1.1."""
    return {rank: partial(with_hosts, DEBIAN.format(name=f"node{rank}")) for rank in range(4)}


def test_hosts_whose_name_means_127_0_1_1_are_ready(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, before=debian_hosts())
    assert [outcome.code for outcome in outcomes] == [0] * 4, outcomes


def test_a_master_name_that_means_loopback_to_the_leader(hosts, tmp_path):
    outcomes = preflight(hosts, tmp_path, flags=["--timeout", "4", "--master-ip", "node0"],
                         before=debian_hosts())
    check(outcomes[:1], 75, "1 of 4", "node0", "127.0.1.1", "--master-ip")
    check(outcomes[1:], 75, "rank 0", MASTER)
