"""Ways to average gradients by hand. Read them in order: each is the answer to the one before.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce

First those of the assignment, here; then pipelined.py, which takes both apart into messages; then
overlapped.py, which hides the messages behind backward, and cross_step.py, behind the next forward
too. Every strategy works in place on a list of tensors and does not know the training loop.
Last local_sgd.py, which averages weights, and seldom: another algorithm.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import LEADER, ring_bytes, total_bytes, world_size
from common.core.failures import UsageError
from common.core.settings import Settings
from common.step.gradient_sync import GradientSync, KeepLocal, as_row, put_back
from PartTwo.cross_step import CrossStepAllReduce
from PartTwo.local_sgd import DiLoCo, LocalSGD
from PartTwo.overlapped import OverlappedAllReduce
from PartTwo.pipelined import PipelinedGatherScatter, ReduceScatterAllGather
from PartTwo.quantised import BITS, QuantisedAverage
from PartTwo.wire import Wire


class GatherScatterPerTensor(KeepLocal):
    """Task one as it is first written: rank 0 gathers each tensor, averages it, scatters the mean.

    Two collectives a tensor, 68 for VGG-11. Everything passes through the root's link: with 4 ranks
    it receives 3 times the gradient's bytes and sends as many.
    """

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        for gradient in gradients:
            row = as_row(gradient)
            self._average_row(row)
            put_back(row, gradient)

    def _average_row(self, row: Tensor) -> None:
        if dist.get_rank() == LEADER:
            received = [torch.empty_like(row) for _ in range(world_size())]
            dist.gather(row, received, dst=LEADER)
            mean = torch.stack(received).mean(dim=0)
            dist.scatter(row, [mean] * world_size(), src=LEADER)
            self.bytes_sent += (world_size() - 1) * total_bytes([row])
        else:
            dist.gather(row, dst=LEADER)
            dist.scatter(row, src=LEADER)
            self.bytes_sent += total_bytes([row])


class AllReducePerTensor(KeepLocal):
    """Task two as it is first written: one all-reduce a tensor, then divide.

    gloo reduces around a ring: no rank is special, and each sends 2*(N-1)/N times the bytes of the
    gradient however many ranks there are. But 34 tensors pay 34 times for starting up.
    """

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        for gradient in gradients:
            row = as_row(gradient)
            dist.all_reduce(row, op=dist.ReduceOp.SUM)
            put_back(row.div_(world_size()), gradient)
            self.bytes_sent += ring_bytes(total_bytes([row]), world_size())


class Flat(KeepLocal):
    """Lays all gradients end to end in one buffer, so that another strategy sees one long tensor.

    One start-up cost instead of one a tensor, for two passes over memory (copy in, copy out).
    Composes with any strategy: Flat(AllReducePerTensor()) is task two as it should be written.
    """

    def __init__(self, inner: GradientSync, wire: Wire | None = None) -> None:
        super().__init__()
        self._inner = inner
        self._wire = wire or Wire()

    def prepare(self, model: nn.Module) -> None:
        """Makes room for what rounding takes, where the wire or the inner strategy rounds."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._wire.expect([sum(parameter.numel() for parameter in trained)], trained[0].detach())
        self._inner.prepare(model)

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """What rounding still owes, if there is any."""
        return [*self._wire.errors(), *self._inner.local_state(optimizer)]

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        payload = self._wire.pack(0, flat)
        self._inner.average([payload])
        self._wire.unpack(payload, flat)
        self.bytes_sent = self._inner.bytes_sent
        means = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(list(gradients), [
            mean.view_as(gradient) for mean, gradient in zip(means, gradients, strict=True)])


class SyncOptions(NamedTuple):
    """What can be chosen about a strategy: see --bucket-mb, --wire, --sync-every and --outer-.

    `timeout` is torch's for a collective, in seconds.
    """

    bucket_mb: float = 1.0
    wire: str = "float32"
    sync_every: int = 50
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    timeout: float = 1800.0

    @classmethod
    def of(cls, settings: Settings) -> "SyncOptions":
        """What the command line says."""
        return cls(settings.bucket_mb, settings.wire, settings.sync_every,
                   settings.outer_learning_rate, settings.outer_momentum,
                   settings.collective_timeout)

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * 1e6)


SYNCHRONIZERS: dict[str, Callable[[SyncOptions], GradientSync]] = {
    "gather-scatter": lambda options: Flat(GatherScatterPerTensor(), Wire(options.wire)),
    "all-reduce": lambda options: Flat(AllReducePerTensor(), Wire(options.wire)),
    "gather-scatter-per-tensor": lambda options: GatherScatterPerTensor(),
    "all-reduce-per-tensor": lambda options: AllReducePerTensor(),
    "gather-scatter-pipelined": lambda options: Flat(PipelinedGatherScatter(),
                                                     Wire(options.wire)),
    "reduce-scatter": lambda options: Flat(ReduceScatterAllGather(), Wire(options.wire)),
    "overlapped-all-reduce": lambda options: OverlappedAllReduce(options.bucket_bytes,
                                                                 Wire(options.wire)),
    "cross-step-all-reduce": lambda options: CrossStepAllReduce(
        options.bucket_bytes, Wire(options.wire), timedelta(seconds=options.timeout)),
}


def _mean_of_meetings(wire: str) -> GradientSync:
    """What averages weights, or progress where `wire` rounds."""
    if wire in BITS:
        return Flat(QuantisedAverage(BITS[wire]))
    return Flat(AllReducePerTensor(), Wire(wire))


def _local_sgd(options: SyncOptions) -> GradientSync:
    mean = _mean_of_meetings(options.wire)
    if options.wire == "float32":
        return LocalSGD(options.sync_every, mean)
    return DiLoCo(options.sync_every, mean, rate=1, momentum=0)


# Other algorithms: these learn something else than what one rank learns.
LOCAL_SYNCHRONIZERS: dict[str, Callable[[SyncOptions], GradientSync]] = {
    "local-sgd": _local_sgd,
    "diloco": lambda options: DiLoCo(options.sync_every, _mean_of_meetings(options.wire),
                                     options.outer_learning_rate, options.outer_momentum),
}
DEFAULTS = SyncOptions()


def create_synchronizer(name: str, options: SyncOptions = DEFAULTS) -> GradientSync:
    """A new synchroniser by its name on the command line; an unknown name is a UsageError."""
    known = SYNCHRONIZERS | LOCAL_SYNCHRONIZERS
    if name not in known:
        raise UsageError(f"no synchroniser is called {name!r}; there are: {', '.join(known)}")
    return known[name](options)
