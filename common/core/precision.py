"""float32, bf16 (autocast: float32 weights, loss and statistics) or float64, in one object."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Precision:
    name: str = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, gradients, inputs and loss."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def products(self) -> torch.dtype:
        """The dtype of matrix products that bear rounding."""
        return torch.bfloat16 if self.name == "bf16" else self.dtype

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """The context in which the model runs: bf16 arithmetic where that is safe, or nothing."""
        if self.name == "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()

    def widen(self, outputs: Tensor) -> Tensor:
        """The model's outputs as the loss wants them: never in half precision."""
        return outputs.to(self.dtype)
