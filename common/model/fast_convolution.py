"""3x3 convolutions of small maps by the bilinear algorithms: transforms and matrix products.

    python3 benchmarks/convolutions.py
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from common.core.torch_private import change_class
from common.model.bilinear import ALGORITHMS, fits
from common.model.tile_transforms import gather, spread

# Samples handled at a time: few enough that their products stay in the processor's cache.
CHUNK = 64


class _Convolve(torch.autograd.Function):
    """`x` (N, C, S, S) and `weight` (K, C, 3, 3) to (N, K, S, S); channels_last throughout.

    Computes in the dtype of `x`; the filters are transformed in that of `weight`, which may be
    wider. Both gradients are the transposed algorithm: the same products, read backwards.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, name: str) -> Tensor:
        algorithm, x = ALGORITHMS[name], _channels_last(x)
        filters = spread(_channels_last(weight), algorithm.filters, x.dtype)
        result = x.new_empty(len(x), len(weight), *x.shape[2:]).to(
            memory_format=torch.channels_last)
        for part in _chunks(x):
            products = torch.bmm(spread(x[part], algorithm.inputs, x.dtype), filters.mT)
            gather(products, algorithm.outputs, result[part], bias)
        # Four times the size of the weights. In their dtype backward makes them again, which takes
        # no time to speak of; with the rounding to another dtype it would be a step's twentieth.
        ctx.save_for_backward(x, weight, filters if x.dtype != weight.dtype else None)
        ctx.algorithm, ctx.has_bias = algorithm, bias is not None
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, filters = ctx.saved_tensors
        algorithm, gradient = ctx.algorithm, _channels_last(gradient)
        if filters is None:
            filters = spread(_channels_last(weight), algorithm.filters, x.dtype)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_filters = torch.zeros_like(filters) if ctx.needs_input_grad[1] else None
        for part in _chunks(x):
            of_products = spread(gradient[part], algorithm.outputs, x.dtype)
            if of_filters is not None:
                of_filters.baddbmm_(of_products.mT, spread(x[part], algorithm.inputs, x.dtype))
            if of_x is not None:
                gather(torch.bmm(of_products, filters), algorithm.inputs, of_x[part])
        of_weight = None
        if of_filters is not None:
            of_weight = _channels_last(torch.empty_like(weight))
            gather(of_filters, algorithm.filters, of_weight)
        of_bias = gradient.sum((0, 2, 3)) if ctx.has_bias else None
        return of_x, of_weight, of_bias, None


def _channels_last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _chunks(x: Tensor) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, len(x), CHUNK)]


class FastConv2d(nn.Conv2d):
    """nn.Conv2d of 3x3, stride 1, padding 1, by the algorithm `algorithm` where it fits the map."""

    algorithm: str

    def forward(self, input: Tensor) -> Tensor:
        height, width = input.shape[-2:]
        if height != width or input.dim() != 4 or not fits(self.algorithm, height):
            return super().forward(input)
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return _Convolve.apply(input, self.weight, self.bias, self.algorithm)


def compute_by(algorithm: str, layer: nn.Conv2d) -> None:
    """Makes a plain 3x3 `layer` a FastConv2d of that algorithm, in place: only its class changes.

    Parameters, hooks and settings stay the very same objects.
    """
    change_class(layer, FastConv2d)
    cast(FastConv2d, layer).algorithm = algorithm
