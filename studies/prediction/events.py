"""When messages arrive if ranks do not begin together: round a ring, and over one rank's link.

    python3 -c "from studies.prediction.events import *; print(ring([0, 0, 1], 2, Hop(1.0, 0.1)))"

Time in seconds. A link carries one message at a time, each way by itself, in the order of asking.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.float64]


class Hop(NamedTuple):
    """One message over one link: `transfer` seconds of the link, then `latency` until it arrives.

    The link is free for the next message when the transfer ends.
    """

    transfer: float
    latency: float

    @property
    def seconds(self) -> float:
        return self.transfer + self.latency


def ring(ready: ArrayLike, steps: int, hop: Hop) -> Times:
    """When each rank has sent and received `steps` messages round a ring.

    `ready[i]` is when rank i can begin. In each step a rank sends its neighbour what it received in
    the step before (its own block in the first).
    """
    departed = arrival = begun = np.asarray(ready, dtype=float)
    for _ in range(steps if len(begun) > 1 else 0):
        arrival = np.roll(departed + hop.seconds, 1)
        departed = np.maximum(arrival, departed + hop.transfer)
    return np.maximum(arrival, begun)


def funnel(ready: Iterable[float], hop: Hop) -> Sequence[float]:
    """When each message is at the root, in the order of arrival, if all go over the root's link.

    `ready[i]` is when sender i can begin; the link serves in the order of `ready`.
    """
    free, arrivals = 0.0, []
    for at in sorted(ready):
        free = max(free, at) + hop.transfer
        arrivals.append(free + hop.latency)
    return arrivals
