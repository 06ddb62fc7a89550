"""The matrix products of a fast convolution: ours on tiles in panels, or torch's on whole rows.

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

PANEL = 32  # channels: two vectors of AVX-512


class Way(NamedTuple):
    """The dtype of tiles, and the channels in a panel of them; 0: all, for torch's products."""

    dtype: torch.dtype
    panel: int = 0

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}, {'ours' if self.panel else 'by torch'}"


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
    return Way(of_tiles, PANEL if ours and has(f"times_{NAMES[of_tiles]}") else 0)


def filters(weight: Tensor, tiling: Tiling, way: Way, transposed: bool) -> Tensor:
    """The transformed filters as `times` wants them: (P, J, rows, w).

    `weight` (K, C, 3, 3), channels_last, has rows of C numbers; `transposed`: rows of K numbers.
    """
    if not way.panel and transposed:
        return spread(weight, tiling, way.dtype).mT
    return spread(_transposed(weight) if transposed else weight, tiling, way.dtype, way.panel)


def _transposed(weight: Tensor) -> Tensor:
    """`weight` (K, C, 3, 3) as (C, K, 3, 3), channels_last: its tiles have rows of K numbers."""
    outputs, inputs = weight.shape[:2]
    made = torch.empty_like(weight.transpose(0, 1), memory_format=torch.channels_last)
    fits = can_read(weight) and can_read(made) and weight.dtype == torch.float32
    if not (fits and run("transpose_float", (weight, made), (outputs, 9, inputs))):
        made.copy_(weight.transpose(0, 1))
    return made


def times(tiles: Tensor, filters: Tensor) -> Tensor:
    """`tiles` (P, J, rows, w) times `filters` (P, K, J * w, v), product by product.

    Returns (P, K, rows, v) of their dtype. J and K are 1, or w and v are PANEL.
    """
    products, inner, rows, width = tiles.shape
    if inner == 1 == filters.shape[1]:
        return torch.bmm(tiles[:, 0], filters[:, 0])[:, None]
    out = tiles.new_empty(products, filters.shape[1], rows, PANEL)
    _run("times", (tiles, filters, out), (products, rows, inner * width, out.shape[1] * PANEL))
    return out


def add_outer(sums: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """What `left` (P, K / w, rows, w) gives with `right` (P, C / w, rows, w), added to `sums`.

    Returns (P, C / w, K, w), in place where there are sums; those of several panels are float32.
    """
    products, panels, rows, width = right.shape
    outputs = left.shape[1] * left.shape[3]
    if panels == 1 == left.shape[1]:
        if sums is None:
            return torch.bmm(left[:, 0].mT, right[:, 0])[:, None]
        sums[:, 0].baddbmm_(left[:, 0].mT, right[:, 0])
        return sums
    made = sums if sums is not None else right.new_empty(products, panels, outputs, width,
                                                         dtype=torch.float32)
    _run("outer", (left, right, made),
         (products, rows, panels * width, outputs, sums is not None))
    return made


def _run(name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]) -> None:
    assert run(f"{name}_{NAMES[tensors[0].dtype]}", tensors, sizes), "way() lets nobody get here"
