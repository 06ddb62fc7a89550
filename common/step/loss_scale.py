"""The loss scale of --precision fp16, and the steps that it skips: torch's GradScaler.

    python3 PartOne/main.py --workload digits-vgg11 --precision fp16

float16 ends at 65504, and has nothing below 6e-8, where many gradients are. So the loss is
multiplied by a scale before backward, and the averaged gradients are divided by it before the
optimizer's step. Where one of them has overflowed the step is skipped and the scale halved; after
2000 steps in a row it is doubled (Micikevicius and others, 2018, arXiv:1710.03740). All ranks have
the same means, and so do the same.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from common.step.gradient_check import NotFinite

SMALLEST = 1.0  # a gradient that overflows at this scale does so by itself


class LossScale:
    """A scale of the loss, and a hook on the optimizer that takes it out again; 1 until `attach`.

    `state` and `restore` are for checkpoints.
    """

    def __init__(self) -> None:
        self._scaler = GradScaler("cpu", enabled=False)
        self._has_skipped = False

    def attach(self, optimizer: Optimizer, device: torch.device) -> None:
        """Begins to scale. Every step of `optimizer` must apply all averaged gradients at once."""
        self._scaler = GradScaler(device.type)
        optimizer.register_step_pre_hook(self._before_step)

    @property
    def is_attached(self) -> bool:
        return self._scaler.is_enabled()

    def scaled(self, loss: Tensor) -> Tensor:
        """Returns the loss times the scale, for backward to begin with."""
        return self._scaler.scale(loss)

    def skipped(self) -> str:
        """A clause on the last step, if it was skipped; else ""."""
        return (f"a gradient overflowed in fp16; the loss scale is {self._scaler.get_scale():g} now"
                if self._has_skipped else "")

    def state(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on with the scale of a `state`; with the first one where that is empty."""
        if state and self.is_attached:
            self._scaler.load_state_dict(dict(state))

    def _before_step(self, optimizer: Optimizer, inputs: Any, names: Any) -> None:
        """Divides the gradients, or takes them away, so that the step finds nothing to do."""
        if all(each.grad is None for group in optimizer.param_groups for each in group["params"]):
            return
        before = self._scaler.get_scale()
        self._scaler.unscale_(optimizer)
        self._scaler.update()
        self._has_skipped = self._scaler.get_scale() < before
        if self._has_skipped:
            if before <= SMALLEST:
                raise NotFinite(f"a gradient, at a loss scale of {before:g},")
            optimizer.zero_grad()
