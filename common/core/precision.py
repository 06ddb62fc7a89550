"""float32, bf16 or fp16 (autocast: float32 weights, loss and statistics) or float64, as one object.

fp16 needs a scaled loss too: see common/step/loss_scale.py.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.core.failures import UsageError

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    name: str = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, gradients, inputs and loss."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def products(self) -> torch.dtype:
        """The dtype of matrix products that bear rounding, but may need the range of float32."""
        return torch.bfloat16 if self.name == "bf16" else self.dtype

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """The context in which the model runs: half precision where that is safe, or nothing."""
        if self.name in HALVES:  # the cache is one for all threads: lockstep's empty each other's
            return torch.autocast(device.type, HALVES[self.name], cache_enabled=False)
        return nullcontext()

    def widen(self, outputs: Tensor) -> Tensor:
        """The model's outputs as the loss wants them: never in half precision.

        Raises UsageError, as `one_tensor` does.
        """
        return one_tensor(outputs).to(self.dtype)


def as_targets(targets: Tensor) -> Tensor:
    """Targets as losses want them: whole numbers, of which numpy has many kinds, as int64."""
    is_whole = not (targets.is_floating_point() or targets.dtype == torch.bool)
    return targets.long() if is_whole else targets


def one_tensor(outputs: Any) -> Tensor:
    """Returns a model's outputs. Raises UsageError where they are anything but one tensor."""
    if not isinstance(outputs, Tensor):
        raise UsageError(f"the model returned a value of type {type(outputs).__name__}: its "
                         "forward must return one tensor, a row for each sample; torch.cat packs "
                         "several")
    return outputs
