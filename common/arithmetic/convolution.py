"""3x3 convolutions of small maps by the bilinear algorithms: transforms and matrix products.

How fast each is beside the library's: docs/one_node.md.
"""

from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from common.arithmetic.bilinear import ALGORITHMS, Algorithm, fits
from common.arithmetic.products import add_outer, times, way_of
from common.arithmetic.tile_transforms import gather, spread
from common.arithmetic.torch_private import change_class

# Tiles handled at a time: few enough that their products stay in the processor's cache, and enough
# that the filters are read seldom.
ROWS = 256


class _Convolve(torch.autograd.Function):
    """`x` (N, C, S, S) and `weight` (K, C, 3, 3) to (N, K, S, S); channels_last throughout.

    Computes in the dtype of `x` or a wider one; the filters are transformed in that of `weight`,
    which may be wider. Both gradients are the transposed algorithm: the same products, read
    backwards.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, name: str) -> Tensor:
        algorithm, x = ALGORITHMS[name], _channels_last(x)
        way = way_of(x.dtype, *weight.shape[:2])
        factors = spread(_channels_last(weight), algorithm.filters, way.dtype).mT
        result = torch.empty(len(x), len(weight), *x.shape[2:], dtype=x.dtype, device=x.device,
                             memory_format=torch.channels_last)
        for part in _chunks(x, algorithm):
            gather(times(spread(x[part], algorithm.inputs, way.dtype), factors, way.ours),
                   algorithm.outputs, result[part], bias)
        ctx.save_for_backward(x, weight)
        ctx.algorithm, ctx.way, ctx.has_bias = algorithm, way, bias is not None
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        algorithm, way, gradient = ctx.algorithm, ctx.way, _channels_last(gradient)
        wants_x, wants_weight, *_ = ctx.needs_input_grad
        of_x = of_factors = None
        of_bias = weight.new_zeros(len(weight)) if ctx.has_bias else None
        if wants_x:
            of_x = torch.empty_like(x)
            factors = spread(_channels_last(weight), algorithm.filters, way.dtype)
        for part in _chunks(x, algorithm):
            of_products = spread(gradient[part], algorithm.outputs, way.dtype)
            if wants_weight:
                of_factors = add_outer(of_factors, of_products,
                                       spread(x[part], algorithm.inputs, way.dtype), way.ours)
            if of_x is not None:
                gather(times(of_products, factors, way.ours), algorithm.inputs, of_x[part])
            if of_bias is not None:
                of_bias += gradient[part].sum((0, 2, 3))
            del of_products  # so that the next chunk's lie where these did, in the cache
        of_weight = _of_weight(of_factors, weight, algorithm) if wants_weight else None
        return of_x, of_weight, of_bias, None


def _of_weight(of_factors: Tensor | None, weight: Tensor, algorithm: Algorithm) -> Tensor:
    """The gradient of `weight` from that of its transformed filters; zero without samples."""
    if of_factors is None:
        return torch.zeros_like(weight)
    of_weight = torch.empty_like(weight, memory_format=torch.channels_last)
    gather(of_factors, algorithm.filters, of_weight)
    return of_weight


def _channels_last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _chunks(x: Tensor, algorithm: Algorithm) -> list[slice]:
    """Slices of samples; together they have about ROWS tiles."""
    samples = max(1, ROWS * algorithm.inputs.tile ** 2 // x.shape[-1] ** 2)
    return [slice(start, start + samples) for start in range(0, len(x), samples)]


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


def is_plain_3x3(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Returns True if `layer` is an nn.Conv2d of 3x3, stride 1, padding 1, all else default."""
    return type(layer) is nn.Conv2d and (
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups,
        layer.padding_mode) == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")


def compute_by(algorithm: str, layer: nn.Conv2d) -> None:
    """Makes a plain 3x3 `layer` a FastConv2d of that algorithm, in place: only its class changes.

    Parameters, hooks and settings stay the very same objects.
    """
    change_class(layer, FastConv2d)
    cast(FastConv2d, layer).algorithm = algorithm
