"""The matrix products of a fast convolution: torch's, or ours where those are slow.

torch's float32 products run at half the speed of AMD's processors with AVX-512; cpp/products.cpp
does not. A `Way` is chosen by the processor alone: docs/one_node.md has the times behind it.

    python3 -c "import torch; from common.model.products import *; print(way_of(torch.float32))"
"""

from typing import NamedTuple

import torch
from torch import Tensor

from common.core.provenance import instruction_sets, processor_flags
from common.model.bilinear import Tiling
from common.model.kernels import NAMES, can_read, has, run
from common.model.tile_transforms import spread

PANEL = 32  # ours take so many channels at once: two vectors of AVX-512


class Way(NamedTuple):
    """The dtype of tiles, and whether our products multiply them."""

    dtype: torch.dtype
    ours: bool = False

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}, {'ours' if self.ours else 'by torch'}"


def way_of(dtype: torch.dtype, *channels: int) -> Way:
    """How maps of `dtype` with so many `channels`, in and out, are multiplied on this processor.

    bfloat16 maps have float32 tiles but where there is AMX, or AMD's instruction for pairs of
    bfloat16: Intel's takes as long for a pair as two of float32 take.
    """
    sets, flags = instruction_sets(), processor_flags()
    if dtype not in NAMES:
        return Way(dtype)
    is_amd = "AuthenticAMD" in flags
    pairs = "AMX" in sets or (is_amd and "avx512_bf16" in flags)
    ours = is_amd and "AVX512" in sets and not any(each % PANEL for each in channels)
    of_tiles = dtype if pairs else torch.float32
    return Way(of_tiles, ours and has(f"times_{NAMES[of_tiles]}"))


def filters(weight: Tensor, tiling: Tiling, way: Way, transposed: bool) -> Tensor:
    """The transformed filters of `weight` (K, C, 3, 3), channels_last: (P, K, C).

    `transposed`: (P, C, K), for ours with rows of K numbers in memory.
    """
    if not transposed:
        return spread(weight, tiling, way.dtype)
    return (spread(_transposed(weight), tiling, way.dtype) if way.ours
            else spread(weight, tiling, way.dtype).mT)


def _transposed(weight: Tensor) -> Tensor:
    """`weight` (K, C, 3, 3) as (C, K, 3, 3), channels_last: its tiles have rows of K numbers."""
    outputs, inputs = weight.shape[:2]
    made = torch.empty_like(weight.transpose(0, 1), memory_format=torch.channels_last)
    fits = can_read(weight) and can_read(made) and weight.dtype == torch.float32
    if not (fits and run("transpose_float", (weight, made), (outputs, 9, inputs))):
        made.copy_(weight.transpose(0, 1))
    return made


def times(tiles: Tensor, factors: Tensor, ours: bool) -> Tensor:
    """`tiles` (P, rows, C) times `factors` (P, C, K): (P, rows, K) of their dtype.

    For ours both are contiguous, and C and K multiples of PANEL.
    """
    if not ours:
        return torch.bmm(tiles, factors)
    products, rows, inputs = tiles.shape
    made = tiles.new_empty(products, rows, factors.shape[-1])
    _run("times", (tiles, factors, made), (products, rows, inputs, made.shape[-1]))
    return made


def add_outer(sums: Tensor | None, left: Tensor, right: Tensor, ours: bool) -> Tensor:
    """`left` (P, rows, K), transposed, times `right` (P, rows, C), added to `sums` (P, K, C).

    In place, where there are sums. Ours are float32, and want what they want of `times`.
    """
    if ours:
        products, rows, inputs = right.shape
        made = sums if sums is not None else right.new_empty(
            products, left.shape[-1], inputs, dtype=torch.float32)
        _run("outer", (left, right, made), (products, rows, inputs, left.shape[-1],
                                            sums is not None))
        return made
    return torch.bmm(left.mT, right) if sums is None else sums.baddbmm_(left.mT, right)


def _run(name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]) -> None:
    assert run(f"{name}_{NAMES[tensors[0].dtype]}", tensors, sizes), "way_of() lets nobody get here"
