"""Parameters that only some ranks have a gradient of, such as an expert that got no sample on one.

    with completed(self, gradients) as shared:  # in a strategy's average, on every rank

Such a parameter counts with zeros on the other ranks: all ranks send the same tensors, and the mean
is that over the global batch. One that no rank has a gradient of keeps none, and so the optimizer
leaves it alone.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.core.collectives import LEADER, gather_rows, ring_bytes, total_bytes, world_size
from common.core.failures import RanksDisagree, UsageError
from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync

Owed = Mapping[Tensor, Tensor]
"""Parameters of which a rounded wire keeps residuals, with these, each of its parameter's shape."""
NOTHING: Owed = {}


class Used:
    """Flags of the `parameters` that have a gradient on any rank, all-reduced, one byte each.

    `here` says which of them this rank has. Every rank must make one, with as many parameters.
    Nothing waits before the first question.
    """

    def __init__(self, parameters: Sequence[Tensor], here: Sequence[bool],
                 group: dist.ProcessGroup | None = None) -> None:
        self._parameters = parameters
        self._row = torch.tensor(here, dtype=torch.uint8, device=parameters[0].device)
        self._work = (dist.all_reduce(self._row, dist.ReduceOp.MAX, group, async_op=True)
                      if world_size() > 1 else None)
        self.bytes_sent = ring_bytes(total_bytes([self._row]), world_size())

    def anywhere(self) -> list[bool]:
        """Waits; returns for each parameter True if some rank has a gradient of it."""
        if self._work is not None:
            self._work.wait()
        return [bool(each) for each in self._row.tolist()]

    def fill(self, also: Collection[Tensor] = ()) -> None:
        """Gives zeros to the parameters that only other ranks have a gradient of, and to `also`."""
        for parameter, is_used in zip(self._parameters, self.anywhere(), strict=True):
            if parameter.grad is None and (is_used or parameter in also):
                parameter.grad = torch.zeros_like(parameter)

    def drop(self, owed: Owed = NOTHING) -> None:
        """Takes the mean from those that no rank has: weight decay and momentum would move them.

        It is zero, but for what a rounded wire has sent of their residuals, which is `owed` again.
        """
        for parameter, is_used in zip(self._parameters, self.anywhere(), strict=True):
            if parameter.grad is not None and not is_used:
                if parameter in owed:
                    owed[parameter].add_(parameter.grad)
                parameter.grad = None


@contextmanager
def completed(sync: GradientSync, gradients: Sequence[Tensor], owed: Owed = NOTHING,
              group: dist.ProcessGroup | None = None) -> Iterator[Sequence[Tensor]]:
    """Around the averaging of all gradients that any rank has: yields them, equally many anywhere.

    Who sends gradients enters it, on every rank, in place of require_finite: raises NotFinite. The
    parameters `owed` are among them even where no rank has a gradient. Without a call of
    sync.prepare(model, ...) before, `gradients` must be complete, and are yielded as they are.
    """
    require_finite(gradients)
    if not sync._parameters:
        yield gradients
        return
    used = Used(sync._parameters, [each.grad is not None for each in sync._parameters], group)
    sync.bytes_sent += used.bytes_sent
    used.fill(owed)
    yield [each.grad for each in sync._parameters if each.grad is not None]
    used.drop(owed)


def trained_alike(model: nn.Module, same_layout: bool = False) -> list[nn.Parameter]:
    """The parameters that require a gradient. Every rank must call it.

    Raises RanksDisagree where they are others on another rank; with `same_layout` also where they
    lie in memory in another order.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if world_size() == 1:
        return trained
    kinds = repr([(tuple(each.shape), each.dtype) for each in trained])
    strides = repr([each.stride() for each in trained])
    row = torch.tensor([len(trained), sum(each.numel() for each in trained),
                        zlib.crc32(kinds.encode()), same_layout and zlib.crc32(strides.encode())],
                       device=next(model.parameters()).device)
    rows = gather_rows(row).tolist()
    for rank, numbers in enumerate(rows):
        _require_alike(rank, numbers, rows[LEADER])
    return trained


def _require_alike(rank: int, numbers: Sequence[int], leaders: Sequence[int]) -> None:
    if numbers[:-1] != leaders[:-1]:
        raise RanksDisagree(
            f"rank {rank} trains {numbers[0]} tensors with {numbers[1]} numbers in all and rank "
            f"{LEADER} {leaders[0]} with {leaders[1]}: number, shapes, dtypes and requires_grad of "
            "the parameters must be equal on all ranks")
    if numbers != leaders:
        raise RanksDisagree(f"rank {rank} keeps its parameters in another memory format than "
                            f"rank {LEADER}")


def require_known(gradients: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
    """Raises UsageError for a gradient that belongs to none of the parameters `trained`.

    A strategy that allots buckets or sums before training would not average it.
    """
    known = {id(each.grad) for each in trained}
    if any(id(each) not in known for each in gradients):
        raise UsageError("a parameter got a gradient that did not require one when training began: "
                         "let it require one from the start, or take --sync all-reduce")
