"""The transforms of bilinear convolutions: a small matrix on both axes of each tile of some maps.

`spread` and `gather` are one pass over memory each where C++ can be compiled (cpp/transforms.cpp),
and many where it cannot: the same sums in the same order, so the same bits.

    python3 -m pytest tests/unit/test_tile_transforms.py
"""

from collections.abc import Sequence
from functools import reduce
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from common.arithmetic.bilinear import Tiling
from common.arithmetic.kernels import NAMES, can_read, run


def spread(maps: Tensor, tiling: Tiling, dtype: torch.dtype) -> Tensor:
    """The matrix of `tiling` on both axes of each tile of `maps` (n, C, S, S), channels_last.

    Returns (products², tiles * n, C) of `dtype`. Sums are made in float32, or in the dtype of wider
    maps.
    """
    samples, channels, size, _ = maps.shape
    rows = (size // tiling.tile) ** 2 * samples
    tiles = maps.new_empty(len(tiling.matrix) ** 2, rows, channels, dtype=dtype)
    if not _run("spread", tiling, maps, tiles):
        tiles.copy_(_spread_by_torch(maps.to(_wide(maps)), tiling).view_as(tiles))
    return tiles


def gather(tiles: Tensor, tiling: Tiling, maps: Tensor, bias: Tensor | None = None) -> None:
    """The transposed way: writes into `maps` (n, C, S, S), channels_last, what `tiles` add up to.

    `tiles` (products², tiles * n, C) are as `spread` returns them; `bias` (C,) is added.
    """
    shift = None if bias is None else bias.to(_wide(tiles))
    if not _run("gather", tiling, maps, tiles, shift):
        sums = _gather_by_torch(tiles.to(_wide(tiles)), tiling, len(maps), maps.shape[-1])
        maps.permute(2, 3, 0, 1).copy_(sums if shift is None else sums + shift)


def _wide(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _run(way: str, tiling: Tiling, maps: Tensor, tiles: Tensor, *more: Tensor | None) -> bool:
    """Runs the compiled transform, into `tiles` or `maps`; returns False if it cannot."""
    if not (can_read(maps) and tiles.is_contiguous()):
        return False
    kinds = "_".join(NAMES.get(each.dtype, "none") for each in (maps, tiles))
    return run(f"{way}_{tiling.name}_{kinds}", (maps, tiles, *more), maps.shape[:3])


def _spread_by_torch(maps: Tensor, tiling: Tiling) -> Tensor:
    """(products, products, tiles down, tiles across, n, C)."""
    positions = maps.permute(2, 3, 0, 1)
    after = _after(tiling)
    padded = pad(positions, (0, 0, 0, 0, tiling.before, after, tiling.before, after))
    offsets = _offsets(tiling, maps.shape[-1])
    half = _times(tiling.matrix, [padded[part] for part in offsets])
    return torch.stack([value for row in half
                        for value in _times(tiling.matrix, [row[:, part] for part in offsets])])


def _gather_by_torch(tiles: Tensor, tiling: Tiling, samples: int, size: int) -> Tensor:
    """(S, S, n, C). The tiles are added in their order, from the first row's first on."""
    products, across = isqrt(len(tiles)), size // tiling.tile
    each = tiles.view(products, products, across, across, samples, -1)
    side = tiling.before + size + _after(tiling)
    sums = tiles.new_zeros(side, side, samples, tiles.shape[-1])
    offsets = _offsets(tiling, size)
    half = _times(tiling.matrix.T, list(each))
    for down, row in reversed(list(zip(offsets, half, strict=True))):
        values = _times(tiling.matrix.T, list(row))
        for part, value in reversed(list(zip(offsets, values, strict=True))):
            sums[down, part] += value
    inside = slice(tiling.before, tiling.before + size)
    return sums[inside, inside]


def _after(tiling: Tiling) -> int:
    """How many positions the last tile reaches beyond the map."""
    return tiling.matrix.shape[1] - tiling.tile - tiling.before


def _offsets(tiling: Tiling, size: int) -> list[slice]:
    """For each position within a tile, where it lies in all tiles along one axis."""
    last = size - tiling.tile
    return [slice(start, start + last + 1, tiling.tile)
            for start in range(tiling.matrix.shape[1])]


def _times(matrix: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """matrix @ parts, term by term: what is zero in `matrix` is left out."""
    terms = ([part * factor for factor, part in zip(row, parts, strict=True) if factor]
             for row in matrix.tolist())
    return [reduce(torch.add, each) for each in terms]
