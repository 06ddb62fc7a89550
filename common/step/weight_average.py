"""A running mean of the weights, for evaluation: it lies nearer the middle of the valley.

Training goes on from the weights themselves; evaluation takes the mean (Polyak and Juditsky, 1992;
Izmailov and others, arXiv:1803.05407). All ranks hold equal weights, so each keeps the same mean
and nothing is sent. The running batch statistics are averaged with the weights that made them.

    python3 PartOne/main.py --workload digits-vgg11 --weight-average 0.9
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from common.core.settings import Settings
from common.model.replica import unwrapped

EVERY = 5


class NoAverage:
    """Evaluates the weights themselves."""

    def is_due(self, steps: int) -> bool:
        """Whether `after_step` is to be called, now that `steps` steps are done."""
        return False

    def after_step(self, steps: int, model: nn.Module) -> None:
        """Nothing to do."""

    def applied(self, model: nn.Module) -> AbstractContextManager:
        """The model as it is."""
        return nullcontext()

    def state(self) -> dict[str, Tensor]:
        """Nothing to remember."""
        return {}


class WeightAverage(NoAverage):
    """Keeps `kept` of itself whenever it takes up the weights: after steps 1, 6, 11 and so on.

    At first it is the plain mean of what it has taken up, so the initial weights never count. Costs
    one copy of the model, and one pass over it in five steps: 2 ms a step for VGG-11.
    """

    def __init__(self, model: nn.Module, kept: float) -> None:
        self._mean = {name: tensor.clone()
                      for name, tensor in unwrapped(model).state_dict().items()}
        self._kept = kept

    def is_due(self, steps: int) -> bool:
        """Whether it takes up the weights, now that `steps` steps are done."""
        return (steps - 1) % EVERY == 0

    def after_step(self, steps: int, model: nn.Module) -> None:
        """Takes up the weights that `steps` steps have made, if it is time."""
        if not self.is_due(steps):
            return
        taken = steps // EVERY
        new = 1 - min(self._kept, taken / (taken + 1))
        now = unwrapped(model).state_dict()
        moving = [name for name, mean in self._mean.items() if mean.is_floating_point()]
        torch._foreach_lerp_([self._mean[name] for name in moving],
                             [now[name] for name in moving], new)
        _copy({name: now[name] for name in now.keys() - set(moving)}, self._mean)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within, `model` holds the mean, weights and buffers; after it, what it held before."""
        weights = unwrapped(model).state_dict()
        own = {name: tensor.clone() for name, tensor in weights.items()}
        _copy(self._mean, weights)
        try:
            yield
        finally:
            _copy(own, weights)

    def state(self) -> dict[str, Tensor]:
        """The mean, as the model's state_dict; the tensors themselves."""
        return self._mean


def create_average(settings: Settings, model: nn.Module,
                   saved: Mapping[str, Tensor]) -> NoAverage:
    """What `settings` ask for, going on from what a checkpoint `saved`, if it saved anything."""
    if not settings.weight_average:
        return NoAverage()
    average = WeightAverage(model, settings.weight_average)
    _copy(saved, average.state())
    return average


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)
