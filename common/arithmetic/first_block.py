"""The first convolution of a network, its batch norm, max pooling and ReLU as one, on a CPU.

A convolution of colours costs little, and what it writes costs much: 67 MB in float32 for VGG-11
and a batch of 256, read three times in a step, and as much again of gradients. Here nobody writes
that map. It is linear in its patches, the 3x3 pixels that each position sees, so its statistics
follow from the patches' second moments; pooling computes it where it reads it; and of its gradient
only what arrives at the maxima is not known from those moments. Moments are added up in float64
but for two rows at a time, so that outputs and statistics are as exact as torch's layers make them
from images of any mean (tests/unit/test_first_block.py).

    python3 -m pytest tests/unit/test_first_block.py
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from common.arithmetic.convolution import is_plain_3x3
from common.arithmetic.kernels import LANES, NAMES, are_float32, has, run
from common.arithmetic.pooling import PooledBatchNorm2d, line_of, line_of_gradient, track

CHANNELS = (1, 3)  # of images: grey or in colour
SIDE = 32  # of the moments as cpp/first_block.cpp has them


class _FirstBlock(torch.autograd.Function):
    """`images` (N, C, H, W), float32, to pooled maps (N, K, H / 2, W / 2) of `dtype`.

    `weight` (K, C, 3, 3) and `bias` (K,) or None are the convolution's; `scale` and `shift` (K,)
    those of `norm`, whose running statistics move. Arithmetic is float32, and float64 for sums
    over more than two rows of an image.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor,
                shift: Tensor, norm: PooledBatchNorm2d, dtype: torch.dtype) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        samples, channels, height, width = images.shape
        count, filters = samples * height * width, len(weight)
        # (9 C + 1, K): what a patch is multiplied by, and the one behind it.
        taps = torch.cat([weight.permute(2, 3, 1, 0).reshape(-1, filters),
                          (torch.zeros_like(scale) if bias is None else bias)[None]])
        moments = _moments(images)
        with_map = (moments[:, :, None] * taps).sum(1)  # in an order of torch's own, not of MKL's
        mean = with_map[-1] / count
        variance = ((with_map * taps).sum(0) / count - mean.square()).clamp(min=0)
        track(norm, count, mean.to(scale), (variance * count).to(scale))
        factor, constant, sign = line_of(mean, variance, scale, shift, norm.eps)
        pooled, places = (torch.empty(samples, filters, height // 2, width // 2, dtype=each,
                                      memory_format=torch.channels_last)
                          for each in (dtype, torch.uint8))
        run(f"convolve_pool_{channels}_{NAMES[dtype]}",
            (images, taps, *(each.float() for each in (sign, factor, constant)), pooled, places),
            (samples, height, width, filters))
        ctx.save_for_backward(images, taps, moments, with_map, places, factor, mean, variance)
        ctx.eps, ctx.count, ctx.has_bias = norm.eps, count, bias is not None
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, taps, moments, with_map, places, factor, mean, variance = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        arrived = _arrived(images, gradient, places)
        of_shift = arrived[-1]
        of_scale = ((arrived * taps).sum(0) - mean * of_shift) * (variance + ctx.eps).rsqrt()
        slope, constant = line_of_gradient(of_scale, of_shift, mean, variance, factor, ctx.eps,
                                           ctx.count)
        of_taps = (slope * with_map + constant * moments[:, -1:] + factor * arrived)[:-1]
        of_weight = of_taps.view(3, 3, images.shape[1], -1).permute(3, 2, 0, 1)
        # What a bias adds batch norm takes out again.
        of_bias = torch.zeros_like(factor) if ctx.has_bias else None
        return None, of_weight, of_bias, of_scale, of_shift, None, None


def _moments(images: Tensor) -> Tensor:
    """The sum over all positions of patch times patch; float64, (9 C + 1, 9 C + 1).

    A patch is by row, column and channel, and has a one behind.
    """
    samples, channels, height, width = images.shape
    sums = images.new_empty(samples, SIDE, SIDE, dtype=torch.float64)
    run(f"moments_{channels}", (images, sums), (samples, height, width))
    moments = sums.sum(0)
    moments[LANES:, :LANES] = moments[:LANES, LANES:].T  # which the loop leaves out
    return moments[:9 * channels + 1, :9 * channels + 1]


def _arrived(images: Tensor, gradient: Tensor, places: Tensor) -> Tensor:
    """The sum over all windows of gradient times the patch at its place; float64, (9 C + 1, K)."""
    samples, channels, height, width = images.shape
    filters = gradient.shape[1]
    sums = images.new_empty(samples, 9 * channels + 1, filters, dtype=torch.float64)
    run(f"arrivals_{channels}_{NAMES[gradient.dtype]}", (images, gradient, places, sums),
        (samples, height, width, filters))
    return sums.sum(0)


def is_first_block(convolution: nn.Module, norm: nn.Module,
                   relu: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Returns True if the three layers can be fused into a first block."""
    return (is_plain_3x3(convolution) and convolution.in_channels in CHANNELS
            and convolution.out_channels % LANES == 0
            and type(norm) is PooledBatchNorm2d and norm.size == 2 and type(relu) is nn.ReLU)


def can_pool(norm: nn.Module, convolution: nn.Conv2d, images: Tensor,
             dtype: torch.dtype) -> TypeGuard[PooledBatchNorm2d]:
    """Returns True if these layers, in their present state, can be fused for maps of `dtype`."""
    return (type(norm) is PooledBatchNorm2d and norm.training
            and are_float32(images, *convolution.parameters(), *norm.parameters())
            and not images.requires_grad and images.dim() == 4 and images.device.type == "cpu"
            and images.numel() > 0 and images.shape[2] % 2 == images.shape[3] % 2 == 0
            and has(f"convolve_pool_{images.shape[1]}_{NAMES.get(dtype)}"))


def first_block(convolution: nn.Conv2d, norm: PooledBatchNorm2d, images: Tensor,
                dtype: torch.dtype) -> Tensor:
    """Applies the two layers and a ReLU to `images` in one; can_pool must be true of them."""
    with torch.autocast(images.device.type, enabled=False):
        return _FirstBlock.apply(images, convolution.weight, convolution.bias, norm.weight,
                                 norm.bias, norm, dtype)
