"""Metrics, such as accuracy or one that a user's workload names, and exact sums over samples."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from common.core.failures import UsageError


@dataclass(frozen=True)
class Metric:
    """A mean over samples of what `of_samples(outputs, targets)` gives: one number each, (n,).

    `outputs` are the model's, (n, ...), and `targets` the data set's. Shares, which lie between 0
    and 1, are shown in percent. Who only reads logs knows no `of_samples`.
    """

    name: str
    of_samples: Callable[[Any, Any], Any] | None = None
    is_share: bool = False

    @property
    def key(self) -> str:
        """Its name in logs: accuracy, mean_absolute_error."""
        return self.name.replace(" ", "_")

    @property
    def title(self) -> str:
        """Its name in the timing log: Accuracy, Mean Absolute Error."""
        return self.name.title()

    def sum(self, outputs: Any, targets: Any) -> Fraction:
        """The sum over these samples. Raises UsageError where it is not one number a sample."""
        return Fraction(self.unread_sum(outputs, targets).item())

    def unread_sum(self, outputs: Any, targets: Any) -> Any:
        """The same as a scalar tensor, float64 or of integers, which a GPU may yet compute."""
        assert self.of_samples is not None
        values = self.of_samples(outputs, targets)
        if not hasattr(values, "is_floating_point") or values.shape != targets.shape[:1]:
            raise UsageError(f"the metric {self.name!r} gives a {type(values).__name__} of shape "
                             f"{tuple(getattr(values, 'shape', ()))} for {len(targets)} samples: "
                             "it must give a tensor with one number for each, (n,)")
        return values.double().sum() if values.is_floating_point() else values.sum()

    def shown(self, mean: float, digits: int = 2) -> str:
        """A mean with its unit; of shares, with so many digits after the point."""
        return f"{100 * mean:.{digits}f} %" if self.is_share else f"{mean:.4g}"


def classes_of(targets: Any) -> Any:
    """Class numbers (n,) of targets, which may also be probabilities or one-hot, (n, classes)."""
    return targets.argmax(dim=1) if targets.is_floating_point() else targets


def _is_right(outputs: Any, targets: Any) -> Any:
    return outputs.argmax(dim=1) == classes_of(targets)


ACCURACY = Metric("accuracy", _is_right, is_share=True)
"""The share of samples whose largest output, of (n, classes), is that of the target's class."""


@dataclass
class Totals:
    """Sums over the samples of an epoch so far: means come from these, never from batch means.

    They are exact, and so the same however many ranks have added them up in whatever order. `score`
    is the metric's: for accuracy, the number of samples that were classified rightly.
    """

    loss: Fraction = Fraction(0)
    score: Fraction = Fraction(0)
    samples: int = 0

    def add(self, other: "Totals") -> None:
        """Adds the sums over other samples."""
        self.loss += other.loss
        self.score += other.score
        self.samples += other.samples

    def means(self) -> tuple[float, float]:
        """(mean loss, mean of the metric) per sample; not a number before the first sample."""
        if not self.samples:
            return float("nan"), float("nan")
        return float(self.loss / self.samples), float(self.score / self.samples)

    def as_json(self) -> list[str]:
        """The three sums, which `from_json` reads."""
        return [str(self.loss), str(self.score), str(self.samples)]

    @classmethod
    def from_json(cls, sums: list[str]) -> "Totals":
        loss, score, samples = sums
        return cls(Fraction(loss), Fraction(score), int(samples))


def summed(parts: Iterable[Totals]) -> Totals:
    """All of them together."""
    whole = Totals()
    for part in parts:
        whole.add(part)
    return whole
