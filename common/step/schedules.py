"""Learning-rate schedules: pure functions of the global step, so that there is nothing to store.

A resumed run knows its step, and so its rate, bit for bit. On any number of ranks a step is one
global batch.

    python3 PartOne/main.py --workload digits-vgg11 --schedule one-cycle
"""

import math
from dataclasses import dataclass
from typing import Any

from common.settings.settings import Settings
from common.settings.types import ScheduleChoice

# torch's defaults for OneCycleLR: a cycle begins at 1/25 of the peak and ends at 1/10,000 of that.
RISING_FRACTION, FIRST_DIVISOR, LAST_DIVISOR = 0.3, 25.0, 1e4


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of a run of `epochs` epochs of `iterations` steps each.

    The rate of all but one-cycle rises linearly over the first `choice.warmup` epochs; for
    one-cycle that is the length of its rise, 0 meaning 0.3 of all.
    """

    choice: ScheduleChoice
    peak: float
    epochs: int
    iterations: int

    def rate(self, step: int) -> float:
        """The learning rate of global step `step`, which counts from 0."""
        choice = self.choice
        if choice.name == "one-cycle":
            return self._one_cycle(step)
        warmup = round(choice.warmup * self.iterations)
        if step < warmup:
            return self.peak * (step + 1) / warmup
        if choice.name == "step":
            falls = step // self.iterations // choice.epochs
            return self.peak * math.prod([choice.factor] * falls)
        if choice.name == "cosine":
            return _between(self.peak, 0.0, (step - warmup) / max(1, self._total - warmup))
        if choice.name == "linear":
            return self.peak * max(0, self._total - step) / max(1, self._total - warmup)
        return self.peak

    def apply(self, optimizer: Any, step: int) -> None:
        """Sets the rate of all parameter groups of `optimizer` for `step`, in place.

        A constant rate is the optimizer's own, and is left alone.
        """
        if self.choice.name == "constant" and not self.choice.warmup:
            return
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)

    @property
    def _total(self) -> int:
        return self.epochs * self.iterations

    def _one_cycle(self, step: int) -> float:
        """Up to the peak and down again, both along half a cosine (Smith, arXiv:1708.07120)."""
        rising = self.choice.warmup * self.iterations or RISING_FRACTION * self._total
        top = max(rising - 1, 1e-9)
        first = self.peak / FIRST_DIVISOR
        if step <= top:
            return _between(first, self.peak, step / top)
        return _between(self.peak, first / LAST_DIVISOR, (step - top) / (self._total - 1 - top))


def _between(start: float, end: float, progress: float) -> float:
    """From `start` to `end` along half a cosine; stays at `end` once `progress` is past 1."""
    return end + (start - end) * (1 + _cosine(min(1.0, progress))) / 2


def _cosine(half_turns: float) -> float:
    """cos(pi * half_turns), from 0 to 1, by its series: C libraries' own differ in the last bit."""
    if half_turns > 0.5:
        return -_cosine(1 - half_turns)
    square, value = (math.pi * half_turns) ** 2, 1.0
    for each in range(22, 0, -2):
        value = 1 - value * square / (each * (each - 1))
    return value


def create_schedule(settings: Settings, iterations: int) -> Schedule:
    """The schedule of a run with `iterations` steps an epoch."""
    return Schedule(settings.schedule, settings.learning_rate, settings.epochs, iterations)
