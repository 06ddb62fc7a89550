"""What a step of VGG-11 asks of the machine, and what the machine can give at most."""

import time

import torch

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
    """Of a training step: backward is twice forward, less the gradient of the images."""
    forward, first = forward_flop(classes)
    return batch_size * (3 * forward - first)


def matmul_ceiling(precision: str) -> float:
    """Floating-point operations a second of the fastest square matrix product of a few sizes."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return max(_matmul_speed(size, dtype) for size in SIZES)


def _matmul_speed(size: int, dtype: torch.dtype) -> float:
    left, right = torch.randn(2, size, size).to(dtype)
    out = torch.mm(left, right)
    fastest, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS_A_SIZE:
        before = time.perf_counter()
        torch.mm(left, right, out=out)
        fastest = min(fastest, time.perf_counter() - before)
    return 2 * size**3 / fastest
