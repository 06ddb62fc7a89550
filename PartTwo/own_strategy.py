"""A strategy out of a user's own file: a class, or a function.

    python3 PartTwo/main.py ... --sync my_sync.py:MyAllReduce,all-reduce

    class MyAllReduce:
        def average(self, gradients):       # a list of tensors, the same on every rank
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
"""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.failures import UsageError
from common.core.user_code import Place
from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync


class OwnStrategy(GradientSync):
    """Stands in the seam for an object with `average`, or for a function that averages.

    Of the seam's other methods the object may have any: `prepare`, `no_sync`, `settle` and `state`.
    It may count its `bytes_sent`.
    """

    def __init__(self, place: Place, own: Any) -> None:
        average = getattr(own, "average", own)
        if not callable(average):
            raise UsageError(f"--sync {place} is neither a function nor a class with a method "
                             "average(gradients)")
        self._place, self._own, self._average = place, own, average
        for name in ("no_sync", "settle", "state"):
            if hasattr(own, name):
                setattr(self, name, getattr(own, name))

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        return getattr(self._own, "bytes_sent", 0)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        if hasattr(self._own, "prepare"):
            self._own.prepare(model, optimizer)

    def no_sync(self) -> AbstractContextManager:
        """Refuses to guess whether hooks of the user's send during this backward pass."""
        if hasattr(self._own, "prepare"):
            raise UsageError(f"--sync {self._place} has prepare but no no_sync: --accumulate needs "
                             "a no_sync(), in which nothing is sent (contextlib.nullcontext, where "
                             "backward sends nothing anyway)")
        return super().no_sync()

    def call(self, gradients: list[Tensor]) -> Any:
        """What the user's code returns for these gradients, unchecked."""
        return self._average(gradients)

    def average(self, gradients: Sequence[Tensor]) -> None:
        require_finite(gradients)
        if self.call(list(gradients)) is not None:
            raise UsageError(f"--sync {self._place} returns something: it must change the "
                             "gradients in place, and return nothing")


def _needs_arguments(kind: type) -> bool:
    wanted = inspect.signature(kind).parameters.values()
    return any(each.default is each.empty and each.kind not in (each.VAR_POSITIONAL,
                                                                each.VAR_KEYWORD)
               for each in wanted)


def own_strategy(place: Place) -> GradientSync:
    """A new strategy of what is at `place`: a GradientSync as it is, anything else in its stead.

    Raises UsageError where it is no strategy, and what the user's code raises.
    """
    found = place.load()
    if isinstance(found, type) and _needs_arguments(found):
        raise UsageError(f"--sync {place} is a class that needs arguments: it must do without")
    own = found() if isinstance(found, type) else found
    return own if isinstance(own, GradientSync) else OwnStrategy(place, own)
