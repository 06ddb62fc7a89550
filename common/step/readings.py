"""Loss and metric of one step, summed over its passes.

    readings = Readings(metric)
    readings.add(loss, outputs, part)
    totals = readings.totals()
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from common.core.metrics import Metric, Totals
from common.step.accumulation import Part
from common.step.gradient_check import NotFinite, is_queued


class Readings:
    """One step's, on this rank. What a GPU has yet to compute is read by `totals`, not before.

    To read a number is to wait for all that the GPU has queued; so all are read at once, when
    backward is queued too.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric, self._totals = metric, Totals()
        self._queued: list[tuple[Tensor, Tensor, Part]] = []

    def add(self, loss: Tensor, outputs: Tensor, part: Part) -> None:
        """One pass: `loss` is the mean over its samples. Raises NotFinite, or `totals` does."""
        if not is_queued(loss):
            _require_finite(loss.item(), part)  # before a metric sees what it may not be made for
        sum_of_metric = self._metric.unread_sum(outputs.detach(), part.targets)
        self._queued.append((loss.detach(), sum_of_metric, part))
        if not is_queued(loss):
            self._read()

    def totals(self) -> Totals:
        """The sums over the samples of all passes so far. Raises NotFinite."""
        self._read()
        return self._totals

    def _read(self) -> None:
        queued, self._queued = self._queued, []
        if not queued:
            return
        numbers = torch.stack([torch.stack([loss.double(), of_metric.to(loss.device).double()])
                               for loss, of_metric, _ in queued]).tolist()
        for (mean, of_metric), (_, _, part) in zip(numbers, queued, strict=True):
            _require_finite(mean, part)
            samples = len(part.targets)
            self._totals.add(Totals(Fraction(mean) * samples, Fraction(of_metric), samples))


def _require_finite(mean: float, part: Part) -> None:
    if not math.isfinite(mean):
        raise NotFinite("the loss", advice=_samples_not_finite(part))


def _samples_not_finite(part: Part) -> str:
    """A clause on the samples of `part` whose own numbers are not finite, or ""."""
    wrong = not_finite(part.inputs, part.targets)
    if not wrong:
        return ""
    if part.indices is None:
        return f"{len(wrong)} of its samples hold a number that is not finite"
    return say_not_finite(part.indices[wrong[0]], "of those trained on", len(wrong) - 1)


def not_finite(inputs: Tensor, targets: Tensor) -> list[int]:
    """The numbers of the samples that hold a value that is infinite or not a number."""
    return [number for number, sample in enumerate(zip(inputs, targets, strict=True))
            if not all(bool(each.isfinite().all()) for each in sample)]


def say_not_finite(number: int, among: str, others: int) -> str:
    """A clause on sample `number`, `among` which it is, and so many `others` of its batch."""
    return (f"sample {number} {among} holds a number that is not finite"
            + f", and so do{'es' * (others == 1)} {others} more of this batch" * bool(others))
