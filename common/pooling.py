"""Max pooling that keeps where the maxima were, and not the maps they came from.

torch's own keeps both for backward, though only the places are needed: batch norm, which made the
maps, does not keep them either. For VGG-11 in float32 that is 0.5 MB an image.

    python3 -m pytest tests/unit/test_pooling.py
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_unpool2d


class _MaxPool(torch.autograd.Function):
    """`maps` ([N,] C, H, W), any floating dtype and memory format; windows of `size` x `size`."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, size: int) -> Tensor:
        pooled, places = torch.ops.aten.max_pool2d_with_indices(maps, [size, size])
        ctx.save_for_backward(places)
        ctx.shape, ctx.size = maps.shape, size
        channels_last = maps.is_contiguous(memory_format=torch.channels_last)
        ctx.layout = torch.channels_last if channels_last else torch.contiguous_format
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        of_maps = max_unpool2d(gradient, places, ctx.size, output_size=ctx.shape[-2:])
        # The kernel goes by the gradient's format, and 1x1 maps look the same in both.
        return of_maps.contiguous(memory_format=ctx.layout), None


class MaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d of square windows side by side, `size` x `size`; the same numbers."""

    def __init__(self, size: int) -> None:
        super().__init__(size)

    def forward(self, input: Tensor) -> Tensor:
        return _MaxPool.apply(input, self.kernel_size)
