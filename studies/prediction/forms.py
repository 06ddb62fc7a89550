"""Communication costs of each way to average, in closed form: the alpha-beta model.

    python3 -c "from studies.prediction.forms import *; print(ring(36.9e6, 4, LinkCost(8e-9)))"

A message of m bytes takes alpha + beta*m seconds (Hockney, 1994); links carry both ways at once. G
is the gradient's bytes, N the number of ranks. All ranks begin together, and processors cost
nothing here. Rates are written as for tc: 300mbit, 1gbit, none.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from common.core.failures import UsageError

# A full Ethernet frame of 1514 bytes carries 1448 of payload behind the headers of Ethernet, IPv4
# and TCP with time stamps. tc's tbf counts the frame; so do a cable's 24 bytes of gap besides.
PAYLOAD_FRACTION = 1448 / 1514
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class LinkCost(NamedTuple):
    """The cost of a message: beta, seconds a byte of payload, and alpha, seconds a message."""

    seconds_per_byte: float
    latency: float = 0.0


def payload_rate(rate: str | float) -> float:
    """Bytes of payload a second each way; infinite for "none". Raises UsageError.

    A number is a rate of payload that was measured.
    """
    if isinstance(rate, float):
        return rate
    if rate == "none":
        return float("inf")
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(kbit|mbit|gbit)", rate)
    if not match or not float(match[1]):
        raise UsageError(f"{rate!r} is no rate: write 300mbit, 1gbit or none")
    return float(match[1]) * UNITS[match[2]] * PAYLOAD_FRACTION / 8


def gather_scatter(size: float, ranks: int, link: LinkCost) -> float:
    """Everything into the root, then everything out of it: 2 (alpha + (N-1) G beta)."""
    return 2 * (link.latency + (ranks - 1) * size * link.seconds_per_byte) if ranks > 1 else 0.0


def pipelined(size: float, ranks: int, link: LinkCost, chunk: float) -> float:
    """The root's link both ways at once: one chunk more than (N-1) G one way."""
    if ranks == 1:
        return 0.0
    return 2 * link.latency + (ranks - 1) * (size + min(chunk, size)) * link.seconds_per_byte


def ring(size: float, ranks: int, link: LinkCost) -> float:
    """2 (N-1) messages of G/N bytes (Patarasuk and Yuan, 2009), each after the one before."""
    return 2 * (ranks - 1) * (link.latency + size / ranks * link.seconds_per_byte)


def reduce_scatter(size: float, ranks: int, link: LinkCost) -> float:
    """Slices straight to their roots (one latency), and the means around a ring."""
    if ranks == 1:
        return 0.0
    return ranks * link.latency + 2 * (ranks - 1) / ranks * size * link.seconds_per_byte


def queue(ready: Sequence[float], seconds: Sequence[float]) -> float:
    """The end of the last bucket, if each begins when it is ready and the one before has ended.

    `ready` and the result are seconds from one beginning; `seconds` is what each bucket takes.
    """
    finished = 0.0
    for at, takes in zip(ready, seconds, strict=True):
        finished = max(finished, at) + takes
    return finished


def two_lanes(ready: Sequence[float], seconds: Sequence[float], first: int) -> list[float]:
    """The end of each bucket, if those from number `first` on have a lane of their own.

    Within a lane buckets go one after the other, as in `queue`; while both lanes have something to
    carry, each has half of the link. `seconds` is what a bucket takes on the whole link.
    """
    ends = [0.0] * len(seconds)
    lanes = [list(range(first)), list(range(first, len(seconds)))]
    left, now = list(seconds), 0.0
    while any(lanes):
        heads = [lane[0] for lane in lanes if lane]
        busy = [head for head in heads if ready[head] <= now]
        arrivals = [ready[head] for head in heads if ready[head] > now]
        until = min([now + left[head] * len(busy) for head in busy] + arrivals)
        for head in busy:
            if now + left[head] * len(busy) <= until:
                ends[head] = until
                lanes[head >= first].pop(0)
            left[head] -= (until - now) / len(busy)
        now = until
    return ends
