"""A strategy out of a user's own file: a class, or a function.

    python3 PartTwo/main.py ... --sync my_sync.py:MyAllReduce,all-reduce

    class MyAllReduce:
        def average(self, gradients):       # a list of tensors, the same on every rank
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import world_size
from common.core.failures import UsageError
from common.settings.user_code import Place
from common.step.gradient_sync import GradientSync
from common.step.shared_gradients import completed, trained_alike


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
        self._told = 0
        self._group: Any = None
        for name in ("no_sync", "settle", "state"):
            if hasattr(own, name):
                setattr(self, name, getattr(own, name))

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """Bytes that the object has counted, plus those that `completed` sent for it; else 0."""
        own = getattr(self._own, "bytes_sent", None)
        return 0 if own is None else own + self._told

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self._told += value - self.bytes_sent

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Every rank must call it: beside an object with hooks we need a process group.

        Raises RanksDisagree where its hooks would be registered on other parameters.
        """
        super().prepare(model, optimizer)
        if hasattr(self._own, "prepare"):
            trained_alike(model)
            # what the hooks have sent may still be on its way, and collectives match by order
            self._group = dist.new_group() if world_size() > 1 else None
            self._own.prepare(model, optimizer)

    def no_sync(self) -> AbstractContextManager:
        """Refuses to guess whether hooks of the user's send during this backward pass."""
        if hasattr(self._own, "prepare"):
            raise UsageError(f"--sync {self._place} has prepare but no no_sync: --accumulate needs "
                             "a no_sync(), in which nothing is sent (contextlib.nullcontext, where "
                             "backward sends nothing anyway)")
        return super().no_sync()

    def call(self, gradients: list[Tensor]) -> Any:
        """Returns the user's result for these gradients, unchecked."""
        return self._average(gradients)

    def average(self, gradients: Sequence[Tensor]) -> None:
        with completed(self, gradients, group=self._group) as shared:
            if self.call(list(shared)) is not None:
                raise UsageError(f"--sync {self._place} returns something: it must change the "
                                 "gradients in place, and return nothing")


def _needs_arguments(kind: type) -> bool:
    wanted = inspect.signature(kind).parameters.values()
    return any(each.default is each.empty and each.kind not in (each.VAR_POSITIONAL,
                                                                each.VAR_KEYWORD)
               for each in wanted)


def own_strategy(place: Place) -> GradientSync:
    """Returns a new GradientSync from the object at `place`, wrapped if it is not one itself.

    Raises UsageError where it is not a strategy, and whatever the user's code raises.
    """
    theirs = place.load()
    if isinstance(theirs, type) and _needs_arguments(theirs):
        raise UsageError(f"--sync {place} is a class that needs arguments: it must do without")
    own = theirs() if isinstance(theirs, type) else theirs
    if not isinstance(own, GradientSync):
        return OwnStrategy(place, own)
    if type(own).average.__module__ == type(own).__module__:
        own.average = partial(_average_completed, own, own.average)  # type: ignore[method-assign]
    return own


def _average_completed(own: GradientSync, average: Callable[[Sequence[Tensor]], None],
                       gradients: Sequence[Tensor]) -> None:
    with completed(own, gradients) as shared:
        average(shared)
