"""What a preflight found, and what follows from it: pure functions, the same answer on every rank.

Which link is broken or slow is decided here, from the tables that all ranks share.
"""

from dataclasses import asdict, dataclass, field
from statistics import median

from common.cluster.all_reduce_speed import AllReduceSpeed, in_megabits
from common.core.failures import Failure, PeerLost
from common.core.settings import Settings
from common.core.world import World
from common.preflight.links import Link

SLOW_FACTOR = 3.0
CLOCK_SECONDS = 0.5


@dataclass
class Findings:
    """What the preflight has found so far; `links[a][b]` is what rank a found towards rank b."""

    world: World
    settings: Settings
    cards: list[dict] = field(default_factory=list)
    links: list[list[Link]] = field(default_factory=list)
    backend: str = ""
    speeds: list[AllReduceSpeed] = field(default_factory=list)
    problems: list[Failure] = field(default_factory=list)

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self.cards[rank]['host']}"


def broken_link(findings: Findings) -> PeerLost | None:
    """Names the first link that does not connect, or through which only small messages pass."""
    bad = [(a, b) for a, row in enumerate(findings.links) for b, link in enumerate(row)
           if a != b and link.error]
    if not bad:
        return None
    a, b = bad[0]
    here, there, link = findings.cards[a], findings.cards[b], findings.links[a][b]
    what = f"{here['address']} to {there['address']}:{there['port']} ({link.error})"
    more = f"; {len(bad) - 1} more in the table" if len(bad) > 1 else ""
    if link.connects:
        return PeerLost(f"{findings.name(a)} cannot send to {findings.name(b)}, {what}: "
                        f"look for a wrong MTU or a tunnel on the way{more}")
    return PeerLost(f"{findings.name(a)} cannot connect to {findings.name(b)}, {what}: gloo needs "
                    f"all ephemeral ports between all nodes, so open them in the firewall{more}")


def slow_link(findings: Findings) -> PeerLost | None:
    """Names the rank, else the pair, that is far slower than the median.

    Ranks that share an address are left out: what passes between them uses no cable.
    """
    rates = _rates_between_machines(findings)
    ranks = range(len(findings.cards))
    best = {("sends", rank): max((rates[p] for p in rates if p[0] == rank), default=None)
            for rank in ranks}
    best |= {("receives", rank): max((rates[p] for p in rates if p[1] == rank), default=None)
             for rank in ranks}
    known = {who: rate for who, rate in best.items() if rate is not None}
    if not known:
        return None
    typical = median(known.values())
    for (does, rank), rate in sorted(known.items(), key=lambda item: item[1]):
        if rate < typical / SLOW_FACTOR:
            return PeerLost(f"the link of {findings.name(rank)} is slow: it {does} at "
                            f"{in_megabits(rate)} Mbit/s at best, the median rank at "
                            f"{in_megabits(typical)} Mbit/s: check its cable, its port and its "
                            "negotiated speed")
    for (a, b), rate in sorted(rates.items(), key=lambda item: item[1]):
        able = min(known["sends", a], known["receives", b])
        if rate < able / SLOW_FACTOR:
            return PeerLost(f"the path from {findings.name(a)} to {findings.name(b)} is slow: "
                            f"{in_megabits(rate)} Mbit/s, though both reach others at "
                            f"{in_megabits(able)} Mbit/s or more")
    return None


def _rates_between_machines(findings: Findings) -> dict[tuple[int, int], float]:
    cards = findings.cards
    return {(a, b): link.bandwidth for a, row in enumerate(findings.links)
            for b, link in enumerate(row)
            if link.bandwidth is not None and cards[a]["address"] != cards[b]["address"]}


def remarks(findings: Findings) -> list[str]:
    """What does not stop a run but is worth knowing."""
    found = []
    for rank, card in enumerate(findings.cards):
        if card["name_means"].startswith("127.") and not card["address"].startswith("127."):
            found.append(f"{findings.name(rank)}: {card['host']} means {card['name_means']} there "
                         f"(hosts file); the run uses {card['address']} all the same")
        if abs(ahead := clock_ahead(findings, rank)) > CLOCK_SECONDS:
            found.append(f"{findings.name(rank)}: its clock is {ahead:+.1f} s off rank 0's, so "
                         "times in logs will not line up")
    return found


def measurements(findings: Findings) -> dict:
    """What scripts/predict.py wants to know of a cluster: plain values, ready for JSON.

    Bandwidths are bytes of payload a second, times seconds.
    """
    kept = ("rank", "host", "address", "machine", "cores")
    return {"cards": [{name: card[name] for name in kept} for card in findings.cards],
            "links": [[asdict(link) for link in row] for row in findings.links],
            "all_reduce": [speed._asdict() for speed in findings.speeds]}


def clock_ahead(findings: Findings, rank: int) -> float:
    """Seconds by which a rank's clock is ahead of the leader's; 0 where it is not known."""
    if not findings.links or rank == 0:
        return 0.0
    return findings.links[0][rank].clock_ahead or 0.0
