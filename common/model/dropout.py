"""Dropout whose masks belong to the samples: the same on any number of ranks.

torch's dropout draws from the process's own random numbers, so two ranks with half the batch each
drop other units than one rank with all of it. Here a mask is a hash of (seed, epoch, layer, sample,
unit), as crops and flips are, and a model with dropout is as exact a proof as one without.

    python3 scripts/prove.py --workload spiral-mlp --steps 10
"""

import numpy as np
import torch
from torch import Tensor, nn

from common.data.epoch_plan import kept_units


class SampleDropout(nn.Module):
    """Drops each unit of input (n, ...) with `probability`, and scales the rest to the same mean.

    It is torch's dropout until DropoutPlan.set_samples is called, and nothing in evaluation mode.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.draw: tuple[int, int, int] | None = None  # (seed, epoch, this layer's number)
        self.indices = np.empty(0, np.int64)  # the sample of each row of the next input

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        if self.draw is None:
            return self._any_dropout(inputs)
        shape = self._mask_shape(inputs)
        kept = kept_units(*self.draw, self.indices, shape[1:].numel(), self.probability)
        mask = torch.from_numpy(kept).view(shape).to(inputs.device, inputs.dtype)
        return inputs * (mask / (1 - self.probability))

    def _mask_shape(self, inputs: Tensor) -> torch.Size:
        return inputs.shape

    def _any_dropout(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(inputs, self.probability)

    def extra_repr(self) -> str:
        return f"{self.probability}"


class SampleDepth(SampleDropout):
    """Drops whole samples of input (n, ...) instead: stochastic depth (arXiv:1603.09382)."""

    def _mask_shape(self, inputs: Tensor) -> torch.Size:
        return torch.Size([len(inputs)] + [1] * (inputs.ndim - 1))

    def _any_dropout(self, inputs: Tensor) -> Tensor:
        return inputs * super()._any_dropout(inputs.new_ones(self._mask_shape(inputs)))


class DropoutPlan:
    """Tells a model's dropout layers which samples come next."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._layers = dropout_layers(model)
        self._seed = seed

    def set_samples(self, epoch: int, indices: np.ndarray | None) -> None:
        """Call before each forward pass with the samples of its rows, int64 (n,).

        None, from a loader that does not know them, leaves the layers to torch's random numbers.
        """
        for number, layer in enumerate(self._layers):
            layer.draw = None if indices is None else (self._seed, epoch, number)
            layer.indices = np.empty(0, np.int64) if indices is None else indices


# of which each rank draws its own random numbers
TORCHS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
          nn.FeatureAlphaDropout)


def torchs_dropout(model: nn.Module) -> list[str]:
    """The names of the model's layers that drop other units on another number of ranks."""
    return [name for name, layer in model.named_modules()
            if isinstance(layer, TORCHS) and layer.p > 0]


def dropout_layers(model: nn.Module) -> list[SampleDropout]:
    """The model's layers of this kind, in the order in which they were made."""
    return [layer for layer in model.modules() if isinstance(layer, SampleDropout)]
