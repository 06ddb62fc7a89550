"""Seconds a step for every way to average gradients, on any number of nodes at any rate.

    step = forward + backward + update + serial + max(slowdown * link, overlapped)

`link` is the alpha-beta model's (studies/prediction/forms.py), `slowdown` the congestion where
several messages cross on one link. Processors cost twice: `serial` is work during which the link is
idle (concatenating gradients, adding what was gathered), `overlapped` is work during a transfer
(the kernel's copies, adding inside a ring), which matters where the link is faster. Both are
measured in some cells and scaled to others by what the busiest processor does. Overlapped
strategies send a bucket when its gradients are ready and the bucket before has been sent; `link` is
then what exceeds backward, or, across steps, what the next forward waits for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from PartTwo.lanes import CHUNK_BYTES, first_of_express
from studies.prediction import forms
from studies.prediction.forms import LinkCost
from studies.prediction.grid import DDP_DEFAULT, PART_THREE

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Machine:
    """The machines of ranks: `cores` each; with `machines` None each rank has one of its own.

    `threads` of arithmetic a rank.
    """

    cores: int
    machines: int | None = None
    threads: int = 1

    def oversubscription(self, ranks: int) -> float:
        """Ranks' threads a core, at least 1: how many times longer each rank computes."""
        if self.machines is None:
            return 1.0
        return max(1.0, ranks * self.threads / (self.cores * self.machines))


class Gradient(NamedTuple):
    """Bytes of each tensor in the order in which backward has them, and when, 0 to 1 of it."""

    sizes: tuple[float, ...]
    ready: tuple[float, ...]

    @property
    def size(self) -> float:
        return sum(self.sizes)

    def buckets(self, limits: Sequence[float]) -> "Gradient":
        """Tensors that travel together: bucket b closes when it holds `limits[b]` bytes or more.

        The last limit holds for all that follow. A bucket is ready when its last tensor is, and not
        before the bucket ahead of it.
        """
        sizes: list[float] = []
        ready: list[float] = []
        held = latest = 0.0
        for number, (size, at) in enumerate(zip(*self, strict=True)):
            held, latest = held + size, max(latest, at)
            limit = limits[min(len(sizes), len(limits) - 1)]
            if held >= limit or number == len(self.sizes) - 1:
                sizes.append(held)
                ready.append(latest)
                held = 0.0
        return Gradient(tuple(sizes), tuple(ready))


class Compute(NamedTuple):
    """Seconds of a step in which nothing is averaged, by phase."""

    forward: float
    backward: float
    update: float

    @property
    def seconds(self) -> float:
        return sum(self)


Wire = Callable[[Gradient, int, LinkCost], float]
Load = Callable[[int, float], float]


@dataclass(frozen=True)
class Strategy:
    """A strategy's use of links and processors.

    `wire` gives the link's seconds for a gradient, with N ranks; `serial` and `overlapped` how
    often the busiest processor handles a gradient, given N and the oversubscription. With `limits`,
    it sends buckets of these sizes while backward goes on, and `across_steps` while
    the next forward does. `part` of the gradient's bytes is sent.
    """

    wire: Wire
    serial: Load
    overlapped: Load
    limits: tuple[float, ...] = ()
    part: float = 1.0
    across_steps: bool = False


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a strategy for one handling of the gradient: see the module.

    Its bytes take `slowdown` times as long as the link's rate says.
    """

    serial: float
    overlapped: float = 0.0
    slowdown: float = 1.0

    def slowed(self, link: LinkCost) -> LinkCost:
        """The link, slowed down to the strategy's pace."""
        return link._replace(seconds_per_byte=self.slowdown * link.seconds_per_byte)


def _root_load(ranks: int, oversubscription: float) -> float:
    """The root handles the other ranks' gradients while they wait and use no processor."""
    return float(ranks - 1)


def _stack_load(ranks: int, oversubscription: float) -> float:
    """Passes over memory at the root: what was gathered, its stack, the mean, in and out of it."""
    return 2.0 * ranks + 3


def _ring_load(ranks: int, oversubscription: float) -> float:
    """Every rank handles as much as a ring makes it send, all at once."""
    return oversubscription * 2 * (ranks - 1) / ranks


def _copy_load(ranks: int, oversubscription: float) -> float:
    """Every rank lays its whole gradient end to end and back, however many there are."""
    return oversubscription


def _whole(form: Callable[[float, int, LinkCost], float]) -> Wire:
    return lambda gradient, ranks, link: form(gradient.size, ranks, link)


def _by_tensor(form: Callable[[float, int, LinkCost], float]) -> Wire:
    return lambda gradient, ranks, link: sum(form(size, ranks, link) for size in gradient.sizes)


def _overlapped(limits: Sequence[float], part: float = 1.0,
                across_steps: bool = False) -> Strategy:
    return Strategy(_whole(forms.ring), _ring_load, _ring_load, tuple(limits), part, across_steps)


STRATEGIES: Mapping[str, Strategy] = {
    "gather-scatter": Strategy(_whole(forms.gather_scatter), _stack_load, _root_load),
    "gather-scatter-per-tensor": Strategy(_by_tensor(forms.gather_scatter), _root_load,
                                          _root_load),
    "gather-scatter-pipelined": Strategy(_whole(partial(forms.pipelined, chunk=CHUNK_BYTES)),
                                         _root_load, _root_load),
    "all-reduce": Strategy(_whole(forms.ring), _copy_load, _ring_load),
    "all-reduce-per-tensor": Strategy(_by_tensor(forms.ring), _ring_load, _ring_load),
    "reduce-scatter": Strategy(_whole(forms.reduce_scatter), _copy_load, _ring_load),
    "overlapped-all-reduce": _overlapped([1e6]),
    "overlapped-all-reduce, bf16 wire": _overlapped([1e6], 0.5),
    "cross-step-all-reduce": _overlapped([1e6], across_steps=True),
    "cross-step-all-reduce, bf16 wire": _overlapped([1e6], 0.5, across_steps=True),
    DDP_DEFAULT: _overlapped([MEBIBYTE, 25 * MEBIBYTE]),
    PART_THREE: _overlapped([MEBIBYTE]),
}


def link_seconds(strategy: Strategy, gradient: Gradient, compute: Compute, ranks: int,
                 link: LinkCost) -> float:
    """Seconds that the links add to a step: all they take, or only those that exceed backward."""
    if not strategy.limits:
        return strategy.wire(gradient, ranks, link)
    sizes, parts = gradient.buckets(strategy.limits)
    ready = [compute.backward * part for part in parts]
    seconds = [forms.ring(strategy.part * size, ranks, link) for size in sizes]
    if strategy.across_steps:
        return _kept_waiting(compute, parts, forms.two_lanes(ready, seconds,
                                                             first_of_express(sizes)))
    return max(0.0, forms.queue(ready, seconds) - compute.backward)


def _kept_waiting(compute: Compute, ready: Sequence[float], through: Sequence[float]) -> float:
    """Seconds that forward waits for buckets that are `through` so long after backward began.

    What backward reaches late, forward needs early: a bucket that is ready at 0.9 of the one is
    needed at 0.1 of the other.
    """
    waited = 0.0
    for part, at in zip(reversed(ready), reversed(through), strict=True):
        needed = compute.backward + waited + compute.forward * (1 - part)
        waited += max(0.0, at - needed)
    return waited


def exposed_seconds(name: str, cost: Cost, gradient: Gradient, compute: Compute, ranks: int,
                    link: LinkCost, machine: Machine) -> float:
    """The communication overhead of a step of `compute`."""
    if ranks == 1:
        return 0.0
    strategy, slower = STRATEGIES[name], machine.oversubscription(ranks)
    return cost.serial * strategy.serial(ranks, slower) + max(
        cost.overlapped * strategy.overlapped(ranks, slower),
        link_seconds(strategy, gradient, compute, ranks, cost.slowed(link)))
