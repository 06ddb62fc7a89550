"""Matrix products whose bits are defined, and the choice between them and torch's.

Ours: each output has one accumulator, which starts at zero, or at the sum so far where samples come
in chunks; k rises; each step is one fused multiply-add, rounded to nearest even. Vectors lie across
outputs. So no vector length, block, thread or make of processor decides a bit, and a loop of three
lines is the judge (tests/unit/test_products.py). A NaN is a NaN; its digits are not defined.

In `native` arithmetic torch's products are used but where they are slow: its float32 products run
at half the speed of AMD's processors with AVX-512. There a `Way` is chosen by the processor alone:
docs/one_node.md has the times behind it.

    python3 -c "from common.arithmetic.products import *; print(way_of(torch.float32))"
"""

from typing import NamedTuple

import torch
from torch import Tensor

from common.arithmetic.kernels import NAMES, has, run
from common.core.provenance import instruction_sets, processor_flags

PAIRS = 32  # ours of bfloat16 take so many channels at once
NATIVE, PORTABLE = "native", "portable"
_chosen = NATIVE


def choose(arithmetic: str) -> None:
    """Sets what `way_of` goes by in this process; portable.py is the caller."""
    global _chosen
    _chosen = arithmetic


def arithmetic() -> str:
    """The arithmetic of this process: "native", "portable", or "portable, but for: …"."""
    return _chosen


def is_portable() -> bool:
    """Returns True if our products are used on any processor."""
    return _chosen.startswith(PORTABLE)


class Way(NamedTuple):
    """The dtype of tiles, and whether our products multiply them."""

    dtype: torch.dtype
    ours: bool = False

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}, {'ours' if self.ours else 'by torch'}"


def way_of(dtype: torch.dtype, *channels: int) -> Way:
    """How maps of `dtype` with so many `channels`, in and out, are multiplied on this processor.

    bfloat16 maps have float32 tiles but where there is AMX, or AMD's instruction for pairs of
    bfloat16: Intel's takes as long for a pair as two of float32 take. Portable tiles are all
    float32.
    """
    if dtype not in NAMES:
        return Way(dtype)
    if is_portable():
        return Way(torch.float32, ours=True)
    sets, flags = instruction_sets(), processor_flags()
    is_amd = "AuthenticAMD" in flags
    pairs = "AMX" in sets or (is_amd and "avx512_bf16" in flags)
    ours = is_amd and "AVX512" in sets and not any(each % PAIRS for each in channels)
    of_tiles = dtype if pairs else torch.float32
    return Way(of_tiles, ours and has(f"times_{NAMES[of_tiles]}"))


def times(tiles: Tensor, factors: Tensor, ours: bool) -> Tensor:
    """`tiles` (P, rows, C) times `factors` (P, C, K): (P, rows, K) of their dtype.

    For ours `tiles` is contiguous, and `factors` or its transpose; C and K of bfloat16 are
    multiples of PAIRS.
    """
    if not ours:
        return torch.bmm(tiles, factors)
    products, rows, inputs = tiles.shape
    assert factors.shape[:2] == (products, inputs) and tiles.is_contiguous()
    assert factors.is_contiguous() or factors.mT.is_contiguous()
    made = tiles.new_empty(products, rows, factors.shape[-1])
    _run("times", (tiles, factors, made),
         (products, rows, inputs, made.shape[-1], not factors.is_contiguous()))
    return made


def add_outer(sums: Tensor | None, left: Tensor, right: Tensor, ours: bool) -> Tensor:
    """`left` (P, rows, K), transposed, times `right` (P, rows, C), added to `sums` (P, K, C).

    In place, where there are sums. Ours are float32, of contiguous sides.
    """
    if ours:
        products, rows, inputs = right.shape
        assert left.shape[:2] == (products, rows)
        assert left.is_contiguous() and right.is_contiguous()
        made = sums if sums is not None else right.new_empty(
            products, left.shape[-1], inputs, dtype=torch.float32)
        _run("outer", (left, right, made), (products, rows, inputs, left.shape[-1],
                                            sums is not None))
        return made
    return torch.bmm(left.mT, right) if sums is None else sums.baddbmm_(left.mT, right)


def _run(name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]) -> None:
    assert run(f"{name}_{NAMES[tensors[0].dtype]}", tensors, sizes), "way_of() lets nobody get here"
