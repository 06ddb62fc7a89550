"""The lesson after overlapping with backward: gradients also travel behind the next step's forward.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync cross-step-all-reduce

Forward needs the first layer's new weights first and the last layer's last; backward has the last
layer's gradient first. So no rank waits at the end of a step: each layer's weights are updated
just before the next forward calls it. The first layers' gradients, which are ready last and needed
first, must not queue behind the rest: they have a lane of their own (priorities by layer:
Jayarajan et al., 2019, arXiv:1905.03960; Peng et al., ByteScheduler, SOSP 2019). The arithmetic is
that of the overlapped all-reduce, in the same order: it learns the same, bit for bit.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from common.arithmetic.torch_private import BeforeUse
from common.core.collectives import total_bytes
from common.core.failures import UsageError
from PartTwo.buckets import Bucket
from PartTwo.lanes import first_of_express
from PartTwo.overlapped import InFlight, OverlappedAllReduce
from PartTwo.sync_options import SyncOptions


class CrossStepAllReduce(OverlappedAllReduce):
    """All-reduces each bucket when backward has filled it; waits when forward needs its weights.

    `average` takes the gradients away from the parameters, so that the loop's optimizer.step(),
    which passes over parameters without one, finds nothing to do; it is called again for each group
    of weights that forward needs. The optimizer must treat parameters independently, as all of
    common/step/optimizers.py do. A weight that is used without its layer being called (as
    nn.MultiheadAttention uses its out_proj's) may be used before its update; that is a UsageError
    in the second step. On a GPU nothing is gained: there each phase of the loop ends when the
    device has nothing left to do.
    """

    def __init__(self, options: SyncOptions) -> None:
        super().__init__(options)
        self._late: set[Parameter] = set()
        self._travelling: dict[Bucket, InFlight] = {}
        self._home: dict[Parameter, Bucket] = {}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Also hooks into every layer's forward, and opens the two lanes."""
        super().prepare(model, optimizer)
        self._optimizer = optimizer
        self._home = {parameter: bucket for bucket in self._buckets
                      for parameter in bucket.parameters}
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        for layer in model.modules():
            own = [p for p in layer.parameters(recurse=False) if p in self._home]
            if own:
                layer.register_forward_pre_hook(
                    BeforeUse(partial(self._before_forward, own)))

    def _open_lanes(self) -> list[Any]:
        bulk, express = (self._open_lane() for _ in range(2))
        first = first_of_express([total_bytes(bucket.parameters) for bucket in self._buckets])
        return [bulk] * first + [express] * (len(self._buckets) - first)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Takes the gradients away, to come back as means in time."""
        self.settle()
        self._send_the_rest(gradients)
        for bucket, sent in zip(self._buckets, self._sent, strict=True):
            bucket.set_aside()
            bucket.empty()
            self._travelling[bucket] = sent
        self._sent.clear()
        self._late = set(self._home)

    def settle(self) -> None:
        """Updates all weights that wait for their gradients, at the rates of the last step."""
        self._late.clear()
        self._update(set(self._travelling))

    def _before_forward(self, own: Sequence[Parameter]) -> None:
        self._late.difference_update(own)
        self._update({self._home[parameter] for parameter in own})

    def _take(self, bucket: Bucket, parameter: Parameter) -> None:
        if parameter in self._late:
            raise UsageError(f"{self._names[parameter]} was used before its update, without its "
                             "layer being called: choose --sync overlapped-all-reduce for this "
                             "model")
        super()._take(bucket, parameter)

    def _update(self, needed: set[Bucket]) -> None:
        """Waits for the gradients of these buckets, where they travel, and lets them be applied."""
        arriving = [bucket for bucket in self._buckets
                    if bucket in needed and bucket in self._travelling]
        if not arriving:
            return
        newer = {parameter: parameter.grad for parameter in self._home}
        for parameter in newer:
            parameter.grad = None
        with self.waiting():
            for bucket in arriving:
                bucket.bring_back()
                self._receive(bucket, self._travelling.pop(bucket))
            self._used.drop(self._owed)
        self._optimizer.step()
        for parameter, gradient in newer.items():
            parameter.grad = gradient
