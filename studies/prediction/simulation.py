"""Steps of a cluster, message by message: stragglers, nodes, racks, from 4 to thousands of ranks.

    python3 scripts/predict.py docs/results/sync_grid.json --simulate docs/scaling.svg

Every rank computes the same number of samples whatever the cluster's size (weak scaling), for a
time that is log-normal about the median. Then, or meanwhile, gradients are averaged by messages:
a link carries one at a time, each way by itself, in the order of asking. Without stragglers the
result is the closed form's (studies/prediction/forms.py), and the tests hold it to that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from studies.prediction.calibration import Calibration
from studies.prediction.forms import Level, LinkCost
from studies.prediction.grid import PART_THREE
from studies.prediction.model import STRATEGIES

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
    """The times at which each rank has sent and received `steps` messages round a ring.

    `ready[i]` is when rank i can begin. In each step a rank sends its neighbour what it received in
    the step before (its own block in the first).
    """
    departed = arrival = begun = np.asarray(ready, dtype=float)
    for _ in range(steps if len(begun) > 1 else 0):
        arrival = np.roll(departed + hop.seconds, 1)
        departed = np.maximum(arrival, departed + hop.transfer)
    return np.maximum(arrival, begun)


def funnel(ready: Iterable[float], hop: Hop) -> Sequence[float]:
    """Arrival times of messages at the root, in order, if all go over the root's link.

    `ready[i]` is when sender i can begin; the link serves in the order of `ready`.
    """
    free, arrivals = 0.0, []
    for at in sorted(ready):
        free = max(free, at) + hop.transfer
        arrivals.append(free + hop.latency)
    return arrivals


@dataclass(frozen=True)
class Cluster:
    """Levels from the innermost outwards: ranks of a node, nodes of a rack, racks."""

    levels: tuple[Level, ...]

    @classmethod
    def of(cls, levels: Sequence[Level], ranks: int) -> "Cluster":
        """So many ranks, a power of two, in full groups of these sizes, also powers of two."""
        taken = []
        for level in levels:
            size = min(level.size, ranks)
            taken.append(Level(size, level.link))
            ranks //= size
        return cls(tuple(taken))

    @property
    def ranks(self) -> int:
        return prod(level.size for level in self.levels)

    @property
    def slowest(self) -> LinkCost:
        """The slowest link, which limits a ring over all ranks: some of its messages take it."""
        return max((level.link for level in self.levels if level.size > 1),
                   key=lambda link: link.seconds_per_byte, default=self.levels[0].link)


def growing(levels: Sequence[Level]) -> list[Cluster]:
    """Clusters of 4, 8, 16, ... ranks, until all levels are full."""
    most = prod(level.size for level in levels)
    return [Cluster.of(levels, 1 << power) for power in range(2, most.bit_length())]


@dataclass(frozen=True)
class Work:
    """A rank's step: median seconds before backward, the gradient's buckets, and the spread.

    `ready[b]` is when bucket b of `sizes[b]` bytes is ready, in seconds from the step's beginning;
    the last one ends the computation. `spread` is the standard deviation of a rank's logarithm.
    """

    ready: tuple[float, ...]
    sizes: tuple[float, ...]
    spread: float = 0.0

    @property
    def compute(self) -> float:
        return self.ready[-1]

    def draw(self, ranks: int, random: np.random.Generator) -> list[Times]:
        """Times at which each rank has a bucket, by bucket: a slow rank is slow in all its step."""
        pace = np.exp(self.spread * random.standard_normal(ranks))
        return [at * pace for at in self.ready]


def step_of(model: Calibration) -> Work:
    """The work of each rank in a large cluster: a quarter of the global batch, as on four nodes.

    Each has processors of its own, and gradients leave in Part Three's buckets.
    """
    phases = model.on_own_machines().compute(4)
    sizes, ready = model.gradient.buckets(STRATEGIES[PART_THREE].limits)
    return Work(tuple(phases.forward + phases.backward * at for at in ready), sizes)


Averaging = Callable[[Cluster, Sequence[Times], Sequence[float]], Times]
"""A function from ready times (by bucket and rank) and sizes to the times of the means, by rank."""


def gather_scatter(cluster: Cluster, ready: Sequence[Times], sizes: Sequence[float]) -> Times:
    """Whoever is done first is first on the root's link; the means leave when all are in."""
    link, done = cluster.slowest, ready[-1]
    hop = Hop(sum(sizes) * link.seconds_per_byte, link.latency)
    gathered = max(funnel(done[1:], hop)[-1], done[0])
    back = funnel([gathered] * (cluster.ranks - 1), hop)
    return np.array([back[-1] - hop.latency, *back])


def rings(cluster: Cluster, ready: Sequence[Times], sizes: Sequence[float],
          by_level: bool = False, overlapped: bool = False) -> Times:
    """One ring over all ranks; or `by_level`: rings in nodes, of nodes and of racks.

    When all has been computed; or `overlapped`: for each bucket as soon as it is ready.
    """
    levels = cluster.levels if by_level else [Level(cluster.ranks, cluster.slowest)]
    if not overlapped:
        ready, sizes = ready[-1:], [sum(sizes)]
    finished = np.zeros_like(ready[0])
    for at, size in zip(ready, sizes, strict=True):
        finished = _ring_of(levels, np.maximum(at, finished), size)
    return np.maximum(finished, ready[-1])


AVERAGING: dict[str, Averaging] = {
    "gather/scatter": gather_scatter,
    "ring": rings,
    "ring, overlapped": partial(rings, overlapped=True),
    "hierarchical": partial(rings, by_level=True),
    "hierarchical, overlapped": partial(rings, by_level=True, overlapped=True),
}


def _ring_of(levels: Sequence[Level], ready: Times, size: float) -> Times:
    """Reduce-scatter of the innermost groups, all the rest among these, and all-gather back."""
    inner = levels[0]
    if len(levels) == 1:
        return _steps(inner, ready, size, 2 * (inner.size - 1))
    groups = ready.reshape(-1, inner.size)
    scattered = np.array([_steps(inner, group, size, inner.size - 1) for group in groups])
    # A group goes on as one: its slowest member has the slice that its link waits for.
    outside = _ring_of(levels[1:], scattered.max(axis=1), size)
    return np.concatenate([_steps(inner, np.full(inner.size, at), size, inner.size - 1)
                           for at in outside])


def _steps(level: Level, ready: Times, size: float, steps: int) -> Times:
    """Some steps of a ring in one group: size - 1 of them are half an all-reduce."""
    hop = Hop(size / level.size * level.link.seconds_per_byte, level.link.latency)
    return ring(ready, steps, hop)


def step_seconds(name: str, cluster: Cluster, work: Work, steps: int = 1, seed: int = 1) -> float:
    """Mean seconds of a step, as long as the slowest rank takes. Equal seeds, equal stragglers."""
    random = np.random.default_rng(seed)
    return float(np.mean([AVERAGING[name](cluster, work.draw(cluster.ranks, random),
                                           work.sizes).max() for _ in range(steps)]))


def efficiency(name: str, cluster: Cluster, work: Work, steps: int = 1, seed: int = 1) -> float:
    """A lone rank's median step over the cluster's mean step: 1 is perfect."""
    return work.compute / step_seconds(name, cluster, work, steps, seed)
