"""Batch norm and ReLU, with or without pooling between them, as one: fewer passes over the maps.

    python3 -m pytest tests/unit/test_fused_layers.py
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from common.arithmetic.kernels import NAMES, are_float32, can_read, run
from common.arithmetic.pooling import PooledBatchNorm2d, line_of, line_of_gradient
from common.arithmetic.torch_private import batch_statistics

BLOCK = 128  # positions that are added up in float32; blocks are in float64


class _NormReLU(torch.autograd.Function):
    """Training-mode batch norm of `maps` (N, C, H, W) by `layer`, max-pooled if it pools, and ReLU.

    `maps` are channels_last, float32 or bfloat16. Moves the running statistics.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor,
                layer: nn.BatchNorm2d) -> Tensor:
        assert layer.momentum is not None
        mean, variance = batch_statistics(maps, layer.running_mean, layer.running_var,
                                          layer.momentum)
        factor, shift, sign = line_of(mean, variance, weight, bias, layer.eps)
        if isinstance(layer, PooledBatchNorm2d):
            seen = torch.empty_like(maps[:, :, ::2, ::2], memory_format=torch.channels_last)
            made, places = torch.empty_like(seen), torch.empty_like(seen, dtype=torch.uint8)
            run(f"pool_relu_{NAMES[maps.dtype]}", (maps, seen, made, places, sign, factor, shift),
                maps.shape)
        else:
            seen, made, places = maps, torch.empty_like(maps), None
            run(f"normalize_{NAMES[maps.dtype]}", (maps, made, factor, shift), _sizes(maps))
        ctx.save_for_backward(maps, seen, places, factor, shift, mean, variance)
        ctx.eps = layer.eps
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, seen, places, factor, shift, mean, variance = ctx.saved_tensors
        gradient, dtype = gradient.contiguous(memory_format=torch.channels_last), NAMES[maps.dtype]
        (positions, channels), (count, _) = _sizes(seen), _sizes(maps)
        sums = factor.new_empty(-(-positions // BLOCK), 2, channels)
        run(f"norm_sums_{dtype}", (gradient, seen, sums, factor, shift),
            (positions, channels, BLOCK))
        of_bias, with_map = sums.sum(0, dtype=torch.float64)
        of_maps = torch.empty_like(maps) if ctx.needs_input_grad[0] else None
        of_weight = (with_map - mean * of_bias) * (variance + ctx.eps).rsqrt()
        lines = [each.to(factor) for each in line_of_gradient(
            of_weight, of_bias, mean, variance, factor, ctx.eps, count)]
        if of_maps is None:
            pass
        elif places is None:
            run(f"unnormalize_{dtype}", (gradient, maps, of_maps, factor, shift, *lines),
                (count, channels))
        else:
            run(f"unpool_{dtype}", (maps, gradient, places, of_maps, *lines, factor), maps.shape)
        return of_maps, of_weight.to(factor), of_bias.to(factor), None


def _sizes(maps: Tensor) -> tuple[int, int]:
    """Positions in all samples, and channels."""
    return maps.numel() // maps.shape[1], maps.shape[1]


def can_normalize(norm: nn.Module, maps: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """Returns True if `norm` and a ReLU can be fused for `maps`, given compiled loops."""
    if type(norm) not in (nn.BatchNorm2d, PooledBatchNorm2d) or maps.dim() != 4:
        return False
    assert isinstance(norm, nn.BatchNorm2d)
    pools = not isinstance(norm, PooledBatchNorm2d) or (
        norm.size == 2 and maps.shape[2] % 2 == maps.shape[3] % 2 == 0)
    return (norm.training and norm.weight is not None and norm.bias is not None
            and are_float32(norm.weight, norm.bias, norm.running_mean)
            and norm.track_running_stats and norm.momentum is not None and pools
            and maps.dtype in NAMES and can_read(maps) and maps.numel() > maps.shape[1])


def norm_relu(norm: nn.BatchNorm2d, maps: Tensor) -> Tensor:
    """Applies `norm` and a ReLU to `maps` in one; can_normalize must be true of them."""
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return _NormReLU.apply(maps, norm.weight, norm.bias, norm)
