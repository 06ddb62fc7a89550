"""Floating-point operations of a step of VGG-11, and the most that the machine can do."""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from common.arithmetic.bilinear import ALGORITHMS
from common.arithmetic.convolution import FastConv2d
from common.arithmetic.kernels import NAMES, has
from common.arithmetic.products import times
from common.model.vgg11 import LAYOUT

SIZES = (1024, 2048, 4096)
SECONDS_A_SIZE = 0.5


def forward_flop(classes: int = 10, pixels: int = 32) -> tuple[int, int]:
    """Floating-point operations of one image's forward pass: of all layers, of the first alone.

    Multiplications and additions of convolutions and the linear layer, each 3x3 kernel counted in
    full at the border too. A kernel that skips the border, or Winograd's, needs fewer.
    """
    flop, channels, first = 0, 3, 0
    for width, pooled in LAYOUT:
        layer = 2 * 9 * channels * width * pixels * pixels
        first, flop = first or layer, flop + layer
        channels, pixels = width, pixels // 2 if pooled else pixels
    return flop + 2 * channels * classes, first


def step_flop(batch_size: int, classes: int = 10) -> int:
    """Operations of a training step: backward is twice forward, less the images' gradient."""
    forward, first = forward_flop(classes)
    return batch_size * (3 * forward - first)


def multiplies_bf16() -> bool:
    """Returns True if torch's CPU products of bf16 are oneDNN's, and so faster than float32's."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def matmul_ceiling(precision: str, device: str) -> float:
    """Floating-point operations a second of the fastest square matrix product of a few sizes.

    Of all that torch offers and of our own; a layer's own product may be any of them. A CPU without
    instructions for bf16 has float32's, since torch's product of bf16 is a plain loop there.
    """
    dtype = torch.bfloat16 if precision == "bf16" and (
        device == "cuda" or multiplies_bf16()) else torch.float32
    return max(_speed(size, multiply) for size in SIZES
               for multiply in _products(torch.randn(2, size, size, device=device).to(dtype)))


def _products(factors: torch.Tensor) -> Iterator[Callable[[], object]]:
    left, right = factors
    out = torch.mm(left, right)
    if factors.is_cuda:
        yield lambda: torch.mm(left, right, out=out)[0, 0].item()  # waits for the GPU
        return
    yield lambda: torch.mm(left, right, out=out)  # MKL's in float32, oneDNN's in bf16
    yield lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    if has(f"times_{NAMES[factors.dtype]}"):
        yield lambda: times(left[None], right[None], ours=True)


def _speed(size: int, multiply: Callable[[], object]) -> float:
    multiply()
    fastest, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS_A_SIZE:
        before = time.perf_counter()
        multiply()
        fastest = min(fastest, time.perf_counter() - before)
    return 2 * size**3 / fastest


def multiplications(model: nn.Module) -> float:
    """The share of direct convolutions' multiplications that this VGG-11's algorithms need."""
    needed = direct = 0.0
    pixels = 32
    for layer, (_, pooled) in zip(_convolutions(model), LAYOUT, strict=True):
        weight = layer.weight.numel() * pixels * pixels
        direct, needed = direct + weight, needed + weight * _share(layer)
        pixels = pixels // 2 if pooled else pixels
    return needed / direct


def _convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]


def _share(layer: nn.Conv2d) -> float:
    if not isinstance(layer, FastConv2d):
        return 1.0
    inputs = ALGORITHMS[layer.algorithm].inputs
    return (len(inputs.matrix) / (3 * inputs.tile)) ** 2
