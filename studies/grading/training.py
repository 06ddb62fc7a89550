"""A scenario on one rank: the steps of a training, with the user's strategy in the seam."""

import os
import time
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from common.core.failures import UsageError
from common.settings.user_code import Place
from PartTwo.own_strategy import OwnStrategy, own_strategy
from studies.grading.messages import Arrays, Seen
from studies.grading.scenarios import LATE_SECONDS, Scenario, backward
from studies.grading.under_way import Sums

RATE = 0.1


class OtherShape(UsageError):
    """Raised when a gradient has another shape than its parameter."""


def _require_shapes(model: nn.Module) -> None:
    for name, each in model.named_parameters():
        if each.grad is not None and each.grad.shape != each.shape:
            raise OtherShape(f"the gradient of {name!r} has the shape {tuple(each.grad.shape)} "
                             f"after average(), and had {tuple(each.shape)}")


class Training:
    """A scenario on this rank, with a new strategy and a new model."""

    def __init__(self, scenario: Scenario, rank: int, world: int, place: Place,
                 sums: Sums) -> None:
        self._scenario, self._rank, self._world, self._sums = scenario, rank, world, sums
        self._model = scenario.model(rank)
        self._weights = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(self._weights, lr=RATE)
        strategy = own_strategy(place)
        self._average = (strategy.call if isinstance(strategy, OwnStrategy) else strategy.average)
        self._before_prepare = _arrays(self._weights)
        strategy.prepare(self._model, self._optimizer)

    def step(self, step: int, inputs: Tensor, weight: float) -> Seen:
        """Forward, backward, average, update: as common/training.py does."""
        self._begin(step)
        before = _arrays(self._weights) if step else self._before_prepare
        buffers = _copies(self._model.buffers())
        backward(self._model, inputs, weight)
        self._complete()
        passed = [each.grad for each in self._weights if each.grad is not None]
        given = list(passed)
        returned = self._average(given)
        unwaited = self._sums.first_unwaited(self._model)
        _require_shapes(self._model)
        gradients = self.gradients()
        after = _arrays(self._weights)
        buffers_changed = not all(map(torch.equal, buffers, self._model.buffers()))
        self._optimizer.step()
        return Seen(gradients, _described(returned), [*map(id, given)] != [*map(id, passed)],
                    (before, after, _arrays(self._weights)), buffers_changed,
                    self._sums.first_changed(self._model), unwaited)

    def gradients(self) -> list[np.ndarray | None]:
        """The gradients as they are now, by parameter; None for one without."""
        return [None if each.grad is None else each.grad.detach().clone().numpy()
                for each in self._weights]

    def _complete(self) -> None:
        """Fills in zeros for gradients that only rank 0 has, as PartTwo/own_strategy.py promises.

        Nothing is sent for it here: the scenario says which they are.
        """
        if self._scenario.uses_all_on_first:
            for each in self._weights:
                if each.grad is None:
                    each.grad = torch.zeros_like(each)

    def _begin(self, step: int) -> None:
        scenario, is_last = self._scenario, self._rank == self._world - 1
        if scenario.loses_a_peer and step and is_last:
            os._exit(0)
        if scenario.is_one_late and self._rank == step % self._world:
            time.sleep(LATE_SECONDS)
        self._optimizer.zero_grad()


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _arrays(tensors: Iterable[Tensor]) -> Arrays:
    return [each.numpy() for each in _copies(tensors)]


def _described(returned: object) -> str:
    if returned is None:
        return ""
    return "a list" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
