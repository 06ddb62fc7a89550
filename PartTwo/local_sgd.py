"""Less often: every rank trains by itself, and every H steps the ranks average their weights.

    python3 PartTwo/main.py -M 10.0.0.1 -N 4 -R 0 --sync local-sgd:50

For links a hundred times slower than averaging gradients needs. What is learned is something else
than what one rank learns: these are other algorithms, and neither proved nor meant to be equal.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync
from common.step.shared_gradients import require_known, trained_alike
from PartTwo.by_hand import Flat, all_reduce
from PartTwo.quantised import BITS, QuantisedFlat
from PartTwo.sync_options import SyncOptions


class LocalSGD(GradientSync):
    """Local SGD (Stich, arXiv:1805.09767): a synchronisation round averages the weights.

    Rounds are spread evenly over an epoch of `iterations` steps, `every` steps or more apart, the
    last at its end. Each rank's loss is weighted by its shard's part of the global batch, here as
    everywhere, so that the plain mean of the weights is exact for uneven shards: with SGD, with
    momentum or not, and every=1 it is the weights that averaged gradients give. (Adam, Adadelta and
    Muon ignore such a weight: with them every rank counts alike.) The optimizer's state
    stays each rank's own.
    """

    def __init__(self, options: SyncOptions) -> None:
        self._iterations = options.iterations
        self._rounds = max(1, options.iterations // options.every)
        self._mean = (QuantisedFlat(BITS[options.wire]) if options.wire in BITS
                      else Flat(all_reduce, options))

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Takes part in each of the optimizer's steps from now on."""
        self._trained = trained_alike(model)
        self._weights = [p.detach() for p in self._trained]
        # of the epoch; a tensor, and where the weights are, so that ranks can gather it for a save
        self._steps = torch.zeros(1, dtype=torch.int64, device=self._weights[0].device)
        self._optimizer = optimizer
        self._mean.prepare(model, optimizer)
        optimizer.register_step_post_hook(lambda *_: self._after_step())

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Leaves the gradients alone; a parameter that has none gets zeros.

        So a parameter that other ranks have a gradient of counts with zeros here, as with any
        strategy, and the optimizer's states, which a checkpoint gathers, are alike on all ranks.
        """
        super().average(gradients)
        require_known(gradients, self._trained)
        for parameter in self._trained:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def _after_step(self) -> None:
        before = int(self._steps)
        self._steps += 1
        self.replicas_agree = False
        if ((before + 1) * self._rounds // self._iterations
                > before * self._rounds // self._iterations):
            self._synchronise()
            self._steps %= self._iterations

    def settle(self) -> None:
        """Where an epoch or the run ends between two rounds: one more, and a new cycle begins."""
        if not self.replicas_agree:
            self._synchronise()
            self._steps.zero_()

    def _synchronise(self) -> None:
        with self.waiting():
            require_finite(self._weights, "the weight")
            self._round()
        self.bytes_sent, self.replicas_agree = self._mean.bytes_sent, True

    def _round(self) -> None:
        """Gives all ranks equal weights to start again from."""
        self._mean.average_all(self._weights)

    def state(self) -> list[Tensor]:
        """This rank's weights, the optimizer's state of each, and the residuals of rounding."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return [self._steps, *(p.detach() for p in parameters),
                *(value for p in parameters for value in self._optimizer.state.get(p, {}).values()
                  if isinstance(value, Tensor) and value.dim()),
                *self._mean.state()]


class DiLoCo(LocalSGD):
    """DiLoCo (Douillard et al., arXiv:2311.08105): an outer optimizer takes a step in each round.

    Its gradient is how far the ranks have come since the last round, in the mean, with the sign
    turned; it is SGD with Nesterov momentum, by the paper with a rate of 0.7 and a momentum of 0.9.
    With 1 and 0 it is local SGD that averages progress instead of weights: the same but for
    rounding, and the wire may round more, as progress is small and weights are not.
    """

    def __init__(self, options: SyncOptions) -> None:
        super().__init__(options)
        self._rate, self._momentum = options.rate, options.momentum
        self._begun_at: list[Tensor] = []
        self._velocity: list[Tensor] = []

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Leaves the gradients alone; before the first step, notes where all ranks start."""
        super().average(gradients)
        self._remember()

    def _remember(self) -> None:
        """Not in `prepare`: a resumed run has other weights by now."""
        if not self._begun_at:
            self._begun_at = [weight.clone() for weight in self._weights]
            if self._momentum:
                self._velocity = [torch.zeros_like(weight) for weight in self._weights]

    def _round(self) -> None:
        progress = [now - before for now, before in
                    zip(self._weights, self._begun_at, strict=True)]
        self._mean.average_all(progress)
        for number, velocity in enumerate(self._velocity):
            velocity.mul_(self._momentum).add_(progress[number])
            progress[number].add_(velocity, alpha=self._momentum)
        for weight, before, step in zip(self._weights, self._begun_at, progress, strict=True):
            weight.copy_(before.add_(step, alpha=self._rate))

    def state(self) -> list[Tensor]:
        """Also where the last round ended, and the outer momentum: the same on all ranks."""
        self._remember()
        return [*super().state(), *self._begun_at, *self._velocity]


def local_sgd(options: SyncOptions) -> LocalSGD:
    """Local SGD, of the weights themselves or, where the wire rounds, of their progress."""
    if options.wire == "float32":
        return LocalSGD(options)
    return DiLoCo(options._replace(rate=1.0, momentum=0.0))
