"""Stalls, slow links and uneven loaders under the witness: no false accusation, no hang.

    scripts/test.sh --slow tests/multiprocess/test_stalls.py

Mutations that turn this red: leave out `here.is_asleep()`, `is_running()` or `holds_bytes()` in
Standstill._place; `is_stall = False` in `standstill`; have Standstill._judge find nothing.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.box import MASTER, Box, box, enter, needs_firewall, needs_namespaces, wait_until
from tests.facts import says
from tests.multiprocess.stalled_loops import (
    FAULTS,
    LINK_FAULTS,
    LINKS,
    LOST,
    SLOW,
    Case,
    hurry,
)
from tests.ranks import Outcome, Program, error_lines, free_port, program, run_programs, started

SEED, RANKS = 40, 3
FEW = [Case("late", "hand"), Case("hook"), Case("calls")]


def drawn(kinds: tuple[str, ...], count: int) -> list[Case]:
    """Random cases, `count` in all, of all kinds in turn."""
    numbers = random.Random(SEED)
    return [Case.random(kind, RANKS, numbers)
            for kind in itertools.islice(itertools.cycle(kinds), count)]


def programs_of(case: Case, folder, hosts: Box | None = None) -> list[Program]:
    common = {"MASTER_ADDR": MASTER if hosts else "127.0.0.1", "MASTER_PORT": str(free_port()),
              "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "eth0" if hosts else "lo"}
    return [program("tests/multiprocess/stalled_loops.py", list(map(str, case)), folder,
                    f"rank{rank}", {"RANK": str(rank), **common},
                    before=partial(enter, hosts.target, rank, hurry) if hosts else hurry)
            for rank in range(RANKS)]


def check(case: Case, outcomes: list[Outcome]) -> None:
    facts, code = {**FAULTS, **LINK_FAULTS}.get(case.kind, ((), 0))
    for rank, outcome in enumerate(outcomes):
        assert "waitForInput" not in outcome.output, outcome.output
        if rank == case.culprit and case.kind in ("killed", "raises"):
            assert outcome.code in (-9, 1)
            continue
        assert outcome.code == code, (case, rank, outcome)
        told = error_lines(outcome.output)
        assert len(told) == bool(code), (case, outcome.output)
        assert all(says(each, f"rank {case.culprit}", *facts) for each in told), (case, told)


@pytest.mark.parametrize("case", [
    *FEW, *(pytest.param(case, marks=pytest.mark.slow)
            for case in drawn((*SLOW, *FAULTS), 76))], ids=str)
def test_a_slow_rank_is_let_be_and_a_fault_named(case, tmp_path):
    check(case, run_programs(programs_of(case, tmp_path)))


@contextlib.contextmanager
def disturbed(case: Case, hosts: Box) -> Iterator[None]:
    """A link that is silent, or as good as silent, for some seconds."""
    node, link = case.culprit, f"link{case.culprit}"
    pair = f"-s 10.77.0.{RANKS - node + 1} -j DROP"  # the other rank that does not lead
    begin, end = {
        "link down": (f"ip link set {link} down", f"ip link set {link} up"),
        "trickles": (f"tc qdisc change dev {link} root tbf rate 4kbit burst 1600 latency 50ms",
                     f"tc qdisc change dev {link} root tbf rate 1gbit burst 1mb latency 50ms"),
        }.get(case.kind, (f"iptables -A INPUT {pair}", f"iptables -D INPUT {pair}"))
    run = hosts.run_outside if link in begin else partial(hosts.run, node)
    run(begin)
    try:
        yield
    finally:
        run(end)


@pytest.fixture(scope="module")
def hosts():
    with box(RANKS) as made:
        yield made


@needs_namespaces
@needs_firewall
@pytest.mark.parametrize("case", [
    Case("link down"), *(pytest.param(case, marks=pytest.mark.slow)
                         for case in [Case(LOST), *drawn(LINKS, 24)])], ids=str)
def test_a_silent_link_ends_no_training_and_a_lost_one_is_named(case, tmp_path, hosts):
    programs = programs_of(case, tmp_path, hosts)
    with contextlib.ExitStack() as link, started([each.process for each in programs]):
        wait_until(lambda: programs[0].path.exists()
                   and f"step {case.at}\n" in programs[0].output())
        link.enter_context(disturbed(case, hosts))
        time.sleep(case.seconds)
        if case.kind != LOST:
            link.close()
    check(case, [each.outcome() for each in programs])
