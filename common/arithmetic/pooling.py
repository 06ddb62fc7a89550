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
from torch.nn.functional import max_pool2d, max_unpool2d

from common.arithmetic.kernels import NAMES, are_float32, can_read, run
from common.arithmetic.torch_private import AnyBatchNorm, batch_norm_sums, batch_statistics


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
    """Training-mode batch norm of `maps` (N, C, H, W) by `layer`, max-pooled.

    Windows of 2x2 on even sides take one pass over the maps each way where C++ can be compiled
    (cpp/pooling.cpp); else torch does the same sums in several.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor,
                layer: "PooledBatchNorm2d") -> Tensor:
        mean, variance = batch_statistics(maps, layer.running_mean, layer.running_var,
                                          layer.momentum)
        factor, shift, sign = line_of(mean, variance, weight, bias, layer.eps)
        maxima, pooled, places = _pool(maps, layer.size, sign, factor, shift)
        ctx.save_for_backward(maps, maxima, places, factor, mean, variance)
        ctx.size, ctx.eps = layer.size, layer.eps
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, maxima, places, factor, mean, variance = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=_layout(maps))
        of_weight, of_bias = batch_norm_sums(gradient, maxima, mean, variance, ctx.eps)
        of_maps = None
        if ctx.needs_input_grad[0]:
            slope, shift = line_of_gradient(of_weight, of_bias, mean, variance, factor, ctx.eps,
                                            maps.numel() // maps.shape[1])
            of_maps = _unpool_to_line(maps, gradient, places, ctx.size, slope, shift, factor)
        return of_maps, of_weight, of_bias, None


def line_of(mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor,
            eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm as factor * x + shift; and the sign of factor, -1 or 1. All are (C,)."""
    factor = (variance + eps).rsqrt() * weight
    return factor, bias - mean * factor, torch.where(weight < 0, -1, 1).to(factor.dtype)


def line_of_gradient(of_weight: Tensor, of_bias: Tensor, mean: Tensor, variance: Tensor,
                     factor: Tensor, eps: float, count: int) -> tuple[Tensor, Tensor]:
    """Slope and shift (C,): the gradient of the maps, of `count` values a channel, is a line too.

    It is slope * maps + shift, and where the maxima were + factor * their gradient.
    """
    slope = -factor * (variance + eps).rsqrt() * of_weight / count
    return slope, -factor * of_bias / count - slope * mean


def _pool(maps: Tensor, size: int, sign: Tensor, factor: Tensor, shift: Tensor,
          ) -> tuple[Tensor, Tensor, Tensor]:
    """The maxima of the windows, or minima where `sign` (C,) is -1; a line of them; their places.

    The line is factor * maxima + shift, by channel, made in the dtype of `factor`.
    """
    if (size == 2 and maps.shape[2] % 2 == maps.shape[3] % 2 == 0 and can_read(maps)
            and are_float32(factor, shift)):
        maxima = torch.empty_like(maps[:, :, ::2, ::2], memory_format=torch.channels_last)
        pooled, places = torch.empty_like(maxima), torch.empty_like(maxima, dtype=torch.uint8)
        if run(f"pool_{NAMES.get(maps.dtype)}",
               (maps, maxima, pooled, places, sign, factor, shift), maps.shape):
            return maxima, pooled, places
    signs = sign.to(maps.dtype).view(-1, 1, 1)
    maxima, places = max_pool2d(maps * signs, size, return_indices=True)
    maxima *= signs
    line = maxima * factor.view(-1, 1, 1) + shift.view(-1, 1, 1)
    return maxima, line.to(maps.dtype), places


def _unpool_to_line(maps: Tensor, gradient: Tensor, places: Tensor, size: int, slope: Tensor,
                    shift: Tensor, factor: Tensor) -> Tensor:
    """slope * maps + shift, by channel, and at `places` + factor * gradient."""
    if places.dtype == torch.uint8:
        of_maps = torch.empty_like(maps)
        run(f"unpool_{NAMES[maps.dtype]}",
            (maps, gradient, places, of_maps, slope, shift, factor), maps.shape)
        return of_maps
    arrived = _unpool(gradient * factor.view(-1, 1, 1), places, size, maps.shape, _layout(maps))
    return (maps * slope.view(-1, 1, 1) + shift.view(-1, 1, 1) + arrived).to(maps.dtype)


def track(layer: AnyBatchNorm, count: int, mean: Tensor, squares: Tensor) -> None:
    """Moves the running buffers of `layer`, if any, towards the mean of `count` values a channel.

    And towards their unbiased variance: `squares` is the sum of squares around the mean.
    """
    if not layer.track_running_stats:
        return
    assert layer.running_mean is not None and layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    momentum = 1 / int(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.mul_(1 - momentum).add_(mean * momentum)
    layer.running_var.mul_(1 - momentum).add_(squares / (count - 1) * momentum)


class PooledBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d and then nn.MaxPool2d: (N, C, H, W) to (N, C, H // size, W // size).

    Parameters, buffers and what happens to them are nn.BatchNorm2d's. A window that holds its
    maximum twice may send its gradient to the other place than they do, once rounded. Without
    `pools_first` it computes as they do, to the bit.
    """

    momentum: float
    pools_first = True

    def __init__(self, features: int, size: int = 2) -> None:
        super().__init__(features)
        self.size = size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pooled by {self.size}"

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.pools_first and input.numel()
                and input.device.type == "cpu"):
            return max_pool(super().forward(input), self.size)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return _NormalizedMaxima.apply(input, self.weight, self.bias, self)


def pool_last(model: nn.Module) -> None:
    """Lets every PooledBatchNorm2d of `model` compute as torch's two layers do, to the bit."""
    for layer in model.modules():
        if isinstance(layer, PooledBatchNorm2d):
            layer.pools_first = False


def pooling(model: nn.Module) -> str:
    """"first" where some layer of `model` pools before it normalises, else "last"."""
    first = any(isinstance(layer, PooledBatchNorm2d) and layer.pools_first
                for layer in model.modules())
    return "first" if first else "last"
