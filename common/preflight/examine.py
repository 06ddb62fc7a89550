"""Before the first run on a cluster: does everything work, and if not, what is to fix first?

Three phases: over the store, which ranks have joined and with what; over plain sockets, pair by
pair, which links connect and how fast they are; and only if all do, the process group. What each
rank finds is shared, so every rank draws the same conclusion. scripts/preflight.py is the command.
"""

import time
from collections.abc import Callable
from dataclasses import asdict

from common.cluster.all_reduce_speed import measure_all_reduce
from common.cluster.board import JOINED, Board
from common.cluster.node import Node
from common.cluster.process_group import form_group
from common.cluster.rank_info import RankInfo, require_one_run
from common.cluster.rendezvous import exchange, join
from common.core.failures import (
    DataError,
    Failure,
    PeerLost,
    RanksDisagree,
    UsageError,
    Verdict,
)
from common.options.workloads import workload_of
from common.preflight.findings import Findings, broken_link, slow_link
from common.preflight.links import Link, LinkServer, pairings, probe
from common.preflight.node_facts import NodeFacts
from common.settings.settings import Settings
from common.settings.user_code import own_errors

PROBE_SECONDS = 0.3
ALL_PROBES_SECONDS = 10.0
GROUP_SECONDS = 15.0


def examine(findings: Findings, then: Callable[[Node], None] | None = None) -> None:
    """Fills `findings`. Every rank must call it; it ends within --timeout seconds.

    On several ranks `then` is called next, where all is well, and may take as long as it needs.
    Raises the first thing to fix, the same on every rank; also then `findings` holds what is known.
    """
    world, settings = findings.world, findings.settings
    now = time.monotonic()
    join_deadline = now + settings.timeout / 2
    try:
        with join(world, settings, join_deadline, now + settings.timeout) as (board, me):
            with LinkServer(me.address) as server:
                _exchange(findings, board, me, server.port, join_deadline)
                _compare(findings, board)
                _probe_all(findings, board)
            if world.size > 1 and not any(
                    isinstance(problem, PeerLost) for problem in findings.problems):
                node = form_group(board, findings.ranks, settings,
                                  settings.collective_timeout if then else GROUP_SECONDS)
                findings.backend, findings.speeds = node.backend, measure_all_reduce(node.device)
            if slow := slow_link(findings):
                findings.problems.append(slow)
            if then and not findings.problems:
                then(node)
    except Failure as failure:
        findings.problems.insert(0, failure)
    if findings.problems:
        raise findings.problems[0]


def _exchange(findings: Findings, board: Board, me: RankInfo, port: int,
              deadline: float) -> None:
    """Every rank's info and facts; where ranks are missing, those of ranks that have joined."""
    facts = NodeFacts.of_this_node(port, findings.settings.output_dir, me.interface)
    board.post("facts", asdict(facts))  # first, so that a rank that has joined has posted its facts
    try:
        exchange(board, me, deadline)
    finally:
        joined, facts_of = board.posted(JOINED), board.posted("facts")
        findings.ranks = [RankInfo(**each) for each in joined.values()]
        findings.facts = [NodeFacts(**facts_of[rank]) for rank in joined]


def _compare(findings: Findings, board: Board) -> None:
    """Code, versions, settings and data: each first difference is a problem."""
    try:
        require_one_run(findings.ranks)
    except RanksDisagree as problem:
        findings.problems.append(problem)
    shared = board.share("the data", _data(findings.settings))
    findings.data = [digest for digest, _, _ in shared]
    for info, (digest, sentence, code) in zip(findings.ranks, shared, strict=True):
        if code:
            findings.problems.append(Verdict(f"{info}: {sentence}", code))
            return
        if digest != findings.data[0]:
            findings.problems.append(RanksDisagree(f"{info} has other data ({digest}) than "
                                                   f"{findings.ranks[0]} ({findings.data[0]})"))
            return


def _data(settings: Settings) -> tuple[str, str, int]:
    """(digest, "", 0) of this node's data; if it cannot be loaded, ("none", reason, exit code)."""
    row = workload_of(settings)
    try:
        with own_errors(lambda error: False, workload=settings.workload):
            digests = [row.dataset(split, settings.data_dir).digest for split in ("train", "test")]
    except (DataError, UsageError) as error:
        return "none", str(error), error.exit_code
    return " ".join(digests), "", 0


def _probe_all(findings: Findings, board: Board) -> None:
    """Every rank probes every other, one at a time; a link that does not work is a problem."""
    me, ranks = board.world.rank, findings.ranks
    rounds = pairings(len(ranks))
    seconds = min(PROBE_SECONDS, ALL_PROBES_SECONDS / (2 * max(1, len(rounds))))
    row = [Link() for _ in ranks]
    for count, pairs in enumerate(rounds):
        for way in (0, 1):
            board.share(f"probes {count}.{way}", me)  # all start together, and disturb no other
            for pair in pairs:
                if pair[way] == me:
                    other = pair[1 - way]
                    row[other] = _better_of_two(ranks[other].address,
                                                findings.facts[other].port, seconds / 2)
    shared = board.share("all probes", [asdict(link) for link in row])
    findings.links = [[Link(**link) for link in links] for links in shared]
    if broken := broken_link(findings):
        findings.problems.append(broken)


def _better_of_two(address: str, port: int, seconds: float) -> Link:
    """The better of two probes: a busy machine may slow one of them, a slow link slows both."""
    links = []
    for _ in range(2):
        links.append(probe(address, port, seconds))
        if links[-1].error:
            return links[-1]
    return max(links, key=lambda link: link.bandwidth or 0.0)
