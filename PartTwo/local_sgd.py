"""Less often: every rank trains by itself, and every H steps the ranks average their weights.

    python3 PartTwo/main.py -M 10.0.0.1 -N 4 -R 0 --sync local-sgd --sync-every 50

For links a hundred times slower than averaging gradients needs. What is learned is something else
than what one rank learns: these are other algorithms, and neither proved nor meant to be equal.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.failures import NonFiniteLoss
from common.step.gradient_check import SpoiltGradient, require_finite
from common.step.gradient_sync import GradientSync, KeepLocal


class LocalSGD(KeepLocal):
    """Local SGD (Stich, arXiv:1805.09767): a meeting replaces the weights by their mean.

    Each rank's loss is weighted by its shard of the global batch, here as everywhere, so that the
    plain mean of the weights is exact for uneven shards: with SGD, with momentum or not, and
    every=1 it is the weights that averaged gradients give. (Adam, Adadelta and Muon take no notice
    of such a weight: with them every rank counts alike.) The optimiser's state stays each rank's
    own. `mean` averages.
    """

    def __init__(self, every: int, mean: GradientSync) -> None:
        super().__init__()
        self._every = every
        self._mean = mean

    def prepare(self, model: nn.Module) -> None:
        """Remembers what is to be averaged."""
        self._weights = [p.detach() for p in model.parameters() if p.requires_grad]
        self._mean.prepare(model)

    def meet(self, iteration: int, iterations: int, is_last: bool) -> None:
        """Makes all weights equal, if it is time. Every rank must call it after every step.

        Meetings are spread evenly over an epoch, `every` steps or more apart, the last at its end.
        Raises NonFiniteLoss when this rank's weights are not finite: in the mean nobody could tell
        whose they were.
        """
        meetings = max(1, iterations // self._every)
        is_due = (iteration + 1) * meetings // iterations > iteration * meetings // iterations
        self.replicas_agree = is_due or is_last
        if self.replicas_agree:
            _require_finite(self._weights, iteration)
            self._meet()
            self.bytes_sent = self._mean.bytes_sent

    def _meet(self) -> None:
        """Gives all ranks equal weights to start again from."""
        self._mean.average(self._weights)

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """This rank's weights, the optimiser's state of each, and what rounding still owes."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [*(p.detach() for p in parameters),
                *(value for p in parameters for value in optimizer.state.get(p, {}).values()
                  if isinstance(value, Tensor) and value.dim()),
                *self._mean.local_state(optimizer)]


class DiLoCo(LocalSGD):
    """DiLoCo (Douillard et al., arXiv:2311.08105): an outer optimiser takes a step at each meeting.

    Its gradient is how far the ranks have come since the last meeting, in the mean, with the sign
    turned; it is SGD with Nesterov momentum, by the paper with a rate of 0.7 and a momentum of 0.9.
    With 1 and 0 it is local SGD that averages progress instead of weights: the same but for
    rounding, and `mean` may round more, as progress is small and weights are not.
    """

    def __init__(self, every: int, mean: GradientSync, rate: float, momentum: float) -> None:
        super().__init__(every, mean)
        self._rate, self._momentum = rate, momentum
        self._met: list[Tensor] = []
        self._velocity: list[Tensor] = []

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Leaves the gradients alone; before the first step, notes where all ranks start."""
        self._remember()

    def _remember(self) -> None:
        """Not in `prepare`: a resumed run has other weights by now."""
        if not self._met:
            self._met = [weight.clone() for weight in self._weights]
            if self._momentum:
                self._velocity = [torch.zeros_like(weight) for weight in self._weights]

    def _meet(self) -> None:
        progress = torch._foreach_sub(self._weights, self._met)
        self._mean.average(progress)
        if self._momentum:
            torch._foreach_mul_(self._velocity, self._momentum)
            torch._foreach_add_(self._velocity, progress)
            torch._foreach_add_(progress, self._velocity, alpha=self._momentum)
        torch._foreach_add_(self._met, progress, alpha=self._rate)
        torch._foreach_copy_(self._weights, self._met)

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """Also where the ranks last met, and the outer momentum: the same on all ranks."""
        self._remember()
        return [*super().local_state(optimizer), *self._met, *self._velocity]


def _require_finite(weights: Sequence[Tensor], iteration: int) -> None:
    try:
        require_finite(weights, weights)
    except SpoiltGradient as spoilt:
        raise NonFiniteLoss(f"a weight became infinite or not a number on rank {dist.get_rank()} "
                            f"in the step of iteration {iteration} or before; try a smaller "
                            "--learning-rate") from spoilt
