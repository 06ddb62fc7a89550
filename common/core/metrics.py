"""What is reported beside the loss: accuracy, or what a user's workload names."""

from collections.abc import Callable
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
        if values.shape != targets.shape[:1]:
            raise UsageError(f"the metric {self.name!r} gives numbers of shape "
                             f"{tuple(values.shape)} for {len(targets)} samples: it must give one "
                             "for each, (n,)")
        return values.double().sum() if values.is_floating_point() else values.sum()

    def shown(self, mean: float, digits: int = 2) -> str:
        """A mean with its unit; of shares, with so many digits after the point."""
        return f"{100 * mean:.{digits}f} %" if self.is_share else f"{mean:.4g}"


def _is_right(outputs: Any, targets: Any) -> Any:
    return outputs.argmax(dim=1) == targets


ACCURACY = Metric("accuracy", _is_right, is_share=True)
"""The share of samples whose largest output, of (n, classes), is that of the target's class."""
