"""Sums that are under way, and the tensors that were changed meanwhile.

Such a race leaves right numbers at one time and wrong ones at another. So it is not seen by
numbers: torch counts the writes to each tensor, and the count must not change between the start of
an asynchronous all-reduce and wait(). The strategy's own process is asked, which may lie: against
itself alone, as what is right is told by the numbers too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

SUMS = ("allreduce", "reduce")  # of a ProcessGroup
# by which one may learn that a sum is there
OTHER_ENDS = ("get_future", "is_completed", "is_success", "synchronize")


class Sums:
    """Watches the asynchronous sums of this process for tensors that change before they end."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[Any, list[tuple[Tensor, int]]]] = {}
        self._changed: list[Tensor] = []

    def watch(self) -> None:
        """Wraps the collectives from now on, whoever starts them and however they were imported."""
        for name in SUMS:
            setattr(dist.ProcessGroup, name, self._starts(getattr(dist.ProcessGroup, name)))
        for name in ("wait", *OTHER_ENDS):
            setattr(dist.Work, name, self._ends(getattr(dist.Work, name), name == "wait"))

    def first_changed(self, model: nn.Module) -> str:
        """The parameter whose gradient was changed since the last call; "" for none.

        For another tensor, "a tensor".
        """
        changed, self._changed = {each.data_ptr() for each in self._changed}, []
        self._under_way.clear()
        names = [name for name, each in model.named_parameters()
                 if each.grad is not None and each.grad.data_ptr() in changed]
        return (names or ["a tensor"])[0] if changed else ""

    def first_unwaited(self, model: nn.Module) -> str:
        """The parameter whose gradient is being summed, and nothing has waited for it; or "".

        Ask before `first_changed`, which forgets the sums of this step.
        """
        summed = {each.data_ptr() for _, counts in self._under_way.values() for each, _ in counts}
        return next((name for name, each in model.named_parameters()
                     if each.grad is not None and each.grad.data_ptr() in summed), "")

    def _starts(self, method: Callable) -> Callable:
        @wraps(method)
        def start(group: Any, tensors: Any, *options: Any, **named: Any) -> Any:
            work = method(group, tensors, *options, **named)
            if isinstance(tensors, list):
                counts = [(each, each._version) for each in tensors if _is_whole(each)]
                self._under_way[id(work)] = work, counts
            return work
        return start

    def _ends(self, method: Callable, is_wait: bool) -> Callable:
        @wraps(method)
        def end(work: Any, *options: Any, **named: Any) -> Any:
            _, counts = self._under_way.pop(id(work), (work, []))
            if is_wait:
                self._changed += [each for each, before in counts if each._version != before]
            return method(work, *options, **named)
        return end


def _is_whole(tensor: Tensor) -> bool:
    """True if the tensor is all of its memory: parts of a tensor share one version count."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
