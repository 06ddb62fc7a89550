"""Messages over links as discrete events: who waits for whom when the ranks do not begin together.

    python3 -c "from studies.prediction.events import *; print(ring([0, 0, 1], 2, Hop(1.0, 0.1)))"

Time in seconds. An event is a message's arrival; a heap holds those to come, and gives the earliest
first. A link carries one message at a time, each way by itself, in the order of asking.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Hop(NamedTuple):
    """One message over one link: `transfer` seconds of the link, then `latency` until it is there.

    The link is free for the next message when the transfer ends.
    """

    transfer: float
    latency: float

    @property
    def seconds(self) -> float:
        return self.transfer + self.latency


def ring(ready: Sequence[float], steps: int, hop: Hop) -> list[float]:
    """When each rank has sent and received `steps` messages round a ring.

    `ready[i]` is when rank i can begin. In each step a rank sends its neighbour what it received in
    the step before (its own block in the first). O(ranks * steps) events.
    """
    size, departed = len(ready), list(ready)
    finished = list(ready)
    if size == 1 or steps == 0:
        return finished
    events = [(ready[rank] + hop.seconds, rank, 1) for rank in range(size)]
    heapq.heapify(events)
    while events:
        arrival, sender, step = heapq.heappop(events)
        receiver = (sender + 1) % size
        finished[receiver] = max(finished[receiver], arrival)
        if step < steps:
            departed[receiver] = max(arrival, departed[receiver] + hop.transfer)
            heapq.heappush(events, (departed[receiver] + hop.seconds, receiver, step + 1))
    return finished


def ring_fronts(ready: Sequence[float], steps: int, hop: Hop) -> list[float]:
    """The same as `ring`, all ranks of a step at once: for thousands of ranks.

    The events of one step depend on those of the step before only, so no heap is needed.
    """
    begun = np.asarray(ready, dtype=float)
    if len(begun) == 1 or steps == 0:
        return begun.tolist()
    departed, arrival = begun, begun
    for _ in range(steps):
        arrival = np.roll(departed + hop.seconds, 1)
        departed = np.maximum(arrival, departed + hop.transfer)
    return np.maximum(arrival, begun).tolist()


def funnel(ready: Sequence[float], hop: Hop) -> list[float]:
    """When each message is at the root, in the order of arrival, if all go over the root's link.

    `ready[i]` is when sender i can begin; the link takes whoever asks first.
    """
    waiting = list(ready)
    heapq.heapify(waiting)
    free, arrivals = 0.0, []
    while waiting:
        free = max(free, heapq.heappop(waiting)) + hop.transfer
        arrivals.append(free + hop.latency)
    return arrivals
