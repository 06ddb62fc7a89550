"""The assignment's two tasks: gather/scatter and all-reduce, tensor by tensor and all in one.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce

A task is a function that replaces one row of numbers by its mean over all ranks. PerTensor and
Flat are strategies that average a model's gradients with it.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import LEADER, ring_bytes, total_bytes, world_size
from common.step.gradient_sync import GradientSync
from common.step.shared_gradients import completed, trained_alike
from PartTwo.sync_options import DEFAULTS, SyncOptions
from PartTwo.wire import Wire

RowMean = Callable[[Tensor], int]
"""Replaces a row (n,), in place, by its mean over all ranks; returns the bytes this rank sent."""


def gather_scatter(row: Tensor) -> int:
    """Task one: rank 0 gathers every rank's row, averages, and scatters the mean.

    Everything passes through the root's link: with 4 ranks it receives 3 times the row's bytes and
    sends as many.
    """
    if dist.get_rank() == LEADER:
        received = [torch.empty_like(row) for _ in range(world_size())]
        dist.gather(row, received, dst=LEADER)
        mean = received[0]
        for other in received[1:]:
            mean += other
        mean /= world_size()
        dist.scatter(row, [mean] * world_size(), src=LEADER)
        return (world_size() - 1) * total_bytes([row])
    dist.gather(row, dst=LEADER)
    dist.scatter(row, src=LEADER)
    return total_bytes([row])


def all_reduce(row: Tensor) -> int:
    """Task two: the sum of all rows, on every rank, then divide.

    gloo and NCCL reduce around a ring: no rank is special, and each sends 2*(N-1)/N times the row's
    bytes however many ranks there are.
    """
    dist.all_reduce(row, op=dist.ReduceOp.SUM)
    row.div_(world_size())
    return ring_bytes(total_bytes([row]), world_size())


class PerTensor(GradientSync):
    """A task as it is first written: one tensor after the other, 34 times for VGG-11.

    Each pays for starting up: two collectives for gather/scatter, one for all-reduce.
    """

    def __init__(self, mean: RowMean, options: SyncOptions = DEFAULTS) -> None:
        self._mean = mean

    def average(self, gradients: Sequence[Tensor]) -> None:
        with completed(self, gradients) as shared:
            for gradient in shared:
                row = gradient.reshape(-1)  # in an order that no rank's memory format decides
                self.bytes_sent += self._mean(row)
                gradient.copy_(row.view_as(gradient))


class Flat(GradientSync):
    """Lays all tensors end to end in one row, and averages that.

    One start-up cost instead of one a tensor, for two passes over memory (copy in, copy out).
    """

    def __init__(self, mean: RowMean, options: SyncOptions = DEFAULTS) -> None:
        self._mean = mean
        self._wire = Wire(options.wire)
        self._owed: dict[Tensor, Tensor] = {}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Where the wire rounds, also allots the residual: one row for all that is trained."""
        super().prepare(model, optimizer)
        if self._wire.rounds:
            trained = trained_alike(model)
            self._wire.expect([torch.cat([each.detach().flatten() for each in trained])])
            residual, = self._wire.residuals()
            pieces = residual.split([each.numel() for each in trained])
            self._owed = {each: piece.view(each.shape)
                          for each, piece in zip(trained, pieces, strict=True)}

    def state(self) -> list[Tensor]:
        return self._wire.residuals()

    def average(self, gradients: Sequence[Tensor]) -> None:
        with completed(self, gradients, self._owed) as shared:
            if shared:
                self.average_all(shared)

    def average_all(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over all ranks; all pass the same ones."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        payload = self._wire.pack(0, flat)
        self.bytes_sent += self._mean(payload)
        self._wire.unpack(payload, flat)
        means = flat.split([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))
