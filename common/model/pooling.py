"""Batch norm and max pooling as one layer, that pools first and then normalises a quarter as much.

Batch norm is a line for every channel, scale * x + shift, so the largest normalised value of a
window is where x is largest; smallest, where the scale is negative. Statistics are taken before, of
all values: the numbers are those of batch norm and then pooling, to rounding. A step writes neither
the normalised map, 67 MB for the first layer of VGG-11 and a batch of 256 in float32, nor keeps it.

    python3 -m pytest tests/unit/test_pooling.py
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, max_pool2d, max_unpool2d

from common.core.torch_private import batch_norm_gradients, batch_statistics


class _MaxPool(torch.autograd.Function):
    """`maps` ([N,] C, H, W), any floating dtype and memory format; windows of `size` x `size`.

    Keeps where the maxima were, and not the maps they came from: torch's own keeps both.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, size: int) -> Tensor:
        pooled, places = max_pool2d(maps, size, return_indices=True)
        ctx.save_for_backward(places)
        ctx.size, ctx.shape, ctx.layout = size, maps.shape, _layout(maps)
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _unpool(gradient, places, ctx.size, ctx.shape, ctx.layout), None


def _layout(maps: Tensor) -> torch.memory_format:
    if maps.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


def _unpool(pooled: Tensor, places: Tensor, size: int, shape: torch.Size,
            layout: torch.memory_format) -> Tensor:
    """Maps of `shape` with `pooled` at `places`, and zero elsewhere."""
    with torch.autocast(pooled.device.type, enabled=False):  # it would widen them
        maps = max_unpool2d(pooled, places, [size, size], output_size=shape[-2:])
    # The kernel goes by the pooled maps' format, and 1x1 maps look the same in both.
    return maps.contiguous(memory_format=layout)


def max_pool(maps: Tensor, size: int) -> Tensor:
    """torch's max_pool2d of square windows side by side: the same numbers, and less kept."""
    return _MaxPool.apply(maps, size)


class _NormalizedMaxima(torch.autograd.Function):
    """Training-mode batch norm of `maps` (N, C, H, W) by `layer`, max-pooled."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor,
                layer: "PooledBatchNorm2d") -> Tensor:
        mean, variance = batch_statistics(maps, layer.running_mean, layer.running_var,
                                          layer.momentum)
        falling = weight < 0
        sign = None
        if bool(falling.any()):
            sign = torch.where(falling, -1, 1).to(maps.dtype).view(-1, 1, 1)
        pooled, places = max_pool2d(maps if sign is None else maps * sign, layer.size,
                                    return_indices=True)
        if sign is not None:
            pooled *= sign
        ctx.save_for_backward(maps, places, weight, mean, (variance + layer.eps).rsqrt())
        ctx.size, ctx.eps = layer.size, layer.eps
        return batch_norm(pooled, mean, variance, weight, bias, eps=layer.eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, places, weight, mean, scale = ctx.saved_tensors
        of_normalized = _unpool(gradient, places, ctx.size, maps.shape, _layout(maps))
        return *batch_norm_gradients(of_normalized, maps, weight, mean, scale, ctx.eps,
                                     ctx.needs_input_grad[:3]), None


class PooledBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d and then nn.MaxPool2d: (N, C, H, W) to (N, C, H // size, W // size).

    Parameters, buffers and what happens to them are nn.BatchNorm2d's. A window that holds its
    maximum twice may send its gradient to the other place than they do, once rounded.
    """

    momentum: float

    def __init__(self, features: int, size: int = 2) -> None:
        super().__init__(features)
        self.size = size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pooled by {self.size}"

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.numel() == 0 or input.device.type != "cpu":
            return max_pool(super().forward(input), self.size)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return _NormalizedMaxima.apply(input, self.weight, self.bias, self)
