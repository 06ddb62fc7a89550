"""The results of a preflight and conclusions from them: pure functions, equal on every rank."""

from dataclasses import dataclass, field
from statistics import median

from common.cluster.addresses import place
from common.cluster.all_reduce_speed import AllReduceSpeed, in_megabits
from common.cluster.rank_info import RankInfo
from common.core.failures import Failure, PeerLost
from common.core.world import World
from common.preflight.links import Link
from common.preflight.node_facts import NodeFacts
from common.settings.settings import Settings

SLOW_FACTOR = 3.0


@dataclass
class Findings:
    """The results of the preflight so far.

    `ranks`, `facts` and `data` (digests) have one entry a rank; `links[a][b]` is the result of rank
    a probing rank b.
    """

    world: World
    settings: Settings
    ranks: list[RankInfo] = field(default_factory=list)
    facts: list[NodeFacts] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    links: list[list[Link]] = field(default_factory=list)
    backend: str = ""
    speeds: list[AllReduceSpeed] = field(default_factory=list)
    problems: list[Failure] = field(default_factory=list)


def broken_link(findings: Findings) -> PeerLost | None:
    """Names the first link that does not connect, or through which only small messages pass."""
    bad = [(a, b) for a, row in enumerate(findings.links) for b, link in enumerate(row)
           if a != b and link.error]
    if not bad:
        return None
    a, b = bad[0]
    here, there, link = findings.ranks[a], findings.ranks[b], findings.links[a][b]
    what = f"{here.address} to {place(there.address, findings.facts[b].port)} ({link.error})"
    more = f"; {len(bad) - 1} more in the table" if len(bad) > 1 else ""
    if link.connects:
        return PeerLost(f"{here} cannot send to {there}, {what}: look for a wrong MTU or a tunnel "
                        f"on the way{more}")
    return PeerLost(f"{here} cannot connect to {there}, {what}: gloo listens on ports that the "
                    f"system gives it, there {findings.facts[b].ports}, so open these in the "
                    f"firewall for all nodes, or give it fewer (docs/cluster.md){more}")


def slow_link(findings: Findings) -> PeerLost | None:
    """Names the rank, else the pair, that is far slower than the median.

    Pairs with one address are excluded: what passes between them uses no cable.
    """
    ranks = findings.ranks
    rates = {(a, b): link.bandwidth for a, row in enumerate(findings.links)
             for b, link in enumerate(row)
             if link.bandwidth is not None and ranks[a].address != ranks[b].address}
    best: dict[tuple[str, int], float] = {}
    for (a, b), rate in rates.items():
        for end in (("sends", a), ("receives", b)):
            best[end] = max(rate, best.get(end, 0.0))
    typical = median(best.values()) if best else 0.0
    for (does, rank), rate in sorted(best.items(), key=lambda item: item[1]):
        if rate < typical / SLOW_FACTOR:
            return PeerLost(f"the link of {ranks[rank]} is slow: it {does} at "
                            f"{in_megabits(rate)} Mbit/s at best, the median rank at "
                            f"{in_megabits(typical)} Mbit/s: check its cable, its port and its "
                            "negotiated speed")
    for (a, b), rate in sorted(rates.items(), key=lambda item: item[1]):
        able = min(best["sends", a], best["receives", b])
        if rate < able / SLOW_FACTOR:
            return PeerLost(f"the path from {ranks[a]} to {ranks[b]} is slow: "
                            f"{in_megabits(rate)} Mbit/s, though both reach other ranks at "
                            f"{in_megabits(able)} Mbit/s or more")
    return None
