"""Four ways to average gradients by hand. Read them in order: each is the answer to the one before.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce

Every strategy works in place on a list of tensors and knows neither model nor training loop.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.collectives import world_size
from common.failures import UsageError
from common.gradient_sync import GradientSync, KeepLocal, ring_bytes, total_bytes

ROOT = 0


class GatherScatterPerTensor(KeepLocal):
    """Task one as it is first written: rank 0 gathers each tensor, averages it, scatters the mean.

    Two collectives a tensor, 68 for VGG-11. Everything passes through the root's link: with 4 ranks
    it receives 3 times the gradient's bytes and sends as many.
    """

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        for gradient in gradients:
            row = gradient.reshape(-1)  # element order must not depend on a rank's memory format
            self._average_row(row)
            gradient.copy_(row.view_as(gradient))

    def _average_row(self, row: Tensor) -> None:
        if dist.get_rank() == ROOT:
            received = [torch.empty_like(row) for _ in range(world_size())]
            dist.gather(row, received, dst=ROOT)
            mean = torch.stack(received).mean(dim=0)
            dist.scatter(row, [mean] * world_size(), src=ROOT)
            self.bytes_sent += (world_size() - 1) * total_bytes([row])
        else:
            dist.gather(row, dst=ROOT)
            dist.scatter(row, src=ROOT)
            self.bytes_sent += total_bytes([row])


class AllReducePerTensor(KeepLocal):
    """Task two as it is first written: one all-reduce a tensor, then divide.

    gloo reduces around a ring: no rank is special, and each sends 2*(N-1)/N times the bytes of the
    gradient however many ranks there are. But 34 tensors pay 34 times for starting up.
    """

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        for gradient in gradients:
            row = gradient.reshape(-1)
            dist.all_reduce(row, op=dist.ReduceOp.SUM)
            gradient.copy_(row.div_(world_size()).view_as(gradient))
            self.bytes_sent += ring_bytes(total_bytes([row]), world_size())


class Flat:
    """Lays all gradients end to end in one buffer, so that another strategy sees one long tensor.

    One start-up cost instead of one a tensor, for two passes over memory (copy in, copy out).
    Composes with any strategy: Flat(AllReducePerTensor()) is task two as it should be written.
    """

    def __init__(self, inner: GradientSync) -> None:
        self._inner = inner

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    def prepare(self, model: nn.Module) -> None:
        """Prepares the inner strategy."""
        self._inner.prepare(model)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._inner.average([flat])
        means = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(list(gradients), [
            mean.view_as(gradient) for mean, gradient in zip(means, gradients, strict=True)])


SYNCHRONIZERS: dict[str, Callable[[], GradientSync]] = {
    "gather-scatter": lambda: Flat(GatherScatterPerTensor()),
    "all-reduce": lambda: Flat(AllReducePerTensor()),
    "gather-scatter-per-tensor": GatherScatterPerTensor,
    "all-reduce-per-tensor": AllReducePerTensor,
}


def create_synchronizer(name: str) -> GradientSync:
    """A new synchroniser by its name on the command line; an unknown name is a UsageError."""
    if name not in SYNCHRONIZERS:
        raise UsageError(f"no synchroniser is called {name!r}; there are: "
                         f"{', '.join(SYNCHRONIZERS)}")
    return SYNCHRONIZERS[name]()
