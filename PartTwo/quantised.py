"""An eighth of the bytes, or a quarter: numbers of 4 or 8 bits, with a scale for every block.

    python3 PartTwo/main.py ... --sync local-sgd:7 --wire int4

For averages that may be inexact, as the progress between two rounds of local SGD may
(Douillard et al., "Streaming DiLoCo", 2025, arXiv:2501.18512, send 4 bits).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import total_bytes, world_size
from common.step.gradient_check import require_finite
from common.step.shared_gradients import trained_alike
from PartTwo.by_hand import Flat

BITS = {"int8": 8, "int4": 4}
BLOCK = 256  # elements that share a scale
SCALE_BYTES = 2
SMALLEST_SCALE = torch.finfo(torch.bfloat16).smallest_normal


def encode(row: Tensor, bits: int) -> Tensor:
    """Rounds blocks of BLOCK elements to integers of 4 or 8 bits, and their scale to bf16.

    `row` is (..., n) of any floating-point dtype, n a multiple of BLOCK, all of it finite; the
    result is uint8, (..., n / BLOCK, bytes of a block). In every block the integer furthest from 0
    is 7 or 127, whose meaning is the largest magnitude there; blocks of numbers that are all below
    SMALLEST_SCALE become zeros.
    """
    largest_code = 2 ** (bits - 1) - 1
    blocks = row.to(at_least_float32(row.dtype)).unflatten(-1, (-1, BLOCK))
    # No code gets past the largest: a normal bf16 is off by a 512th at most, a subnormal by more.
    scale = (blocks.abs().amax(dim=-1, keepdim=True) / largest_code).clamp_(
        min=SMALLEST_SCALE).bfloat16()
    codes = (blocks / scale.to(blocks.dtype)).round_().to(torch.int8)
    if bits == 4:
        codes = (codes[..., ::2] << 4) | (codes[..., 1::2] & 15)
    return torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], dim=-1)


def decode(message: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Decodes messages of `encode`: (..., blocks, bytes of a block) becomes (..., n) of `dtype`."""
    codes = message[..., :-SCALE_BYTES].view(torch.int8)
    scale = message[..., -SCALE_BYTES:].contiguous().view(torch.bfloat16)
    if bits == 4:
        codes = torch.stack([codes >> 4, ((codes & 15) ^ 8) - 8], dim=-1).flatten(-2)
    wide = at_least_float32(dtype)
    return (codes.to(wide) * scale.to(wide)).flatten(-2).to(dtype)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where that has fewer bits: a scale may be smaller than float16 goes."""
    return torch.promote_types(dtype, torch.float32)


class QuantisedFlat(Flat):
    """Averages one long row by reduce-scatter and all-gather, in 4 or 8 bits both ways.

    Rounded numbers cannot be added on the way, as a ring does; so every rank is the root of one
    N-th, decodes what all send, averages, and sends the mean to all, rounded again. All ranks,
    the root too, decode the same bytes: they end with equal numbers, bit for bit. The residual of
    either rounding is added to the next call's row and mean (error feedback, as in wire.py; on both
    ways, Tang et al., "DoubleSqueeze", 2019, arXiv:1905.05957).
    """

    def __init__(self, bits: int) -> None:
        super().__init__(self._average_row)
        self._bits = bits

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Allots the residuals of a row as long as all trained parameters together."""
        row = torch.cat([each.detach().flatten() for each in trained_alike(model)])
        size = len(row) + -len(row) % (BLOCK * world_size())
        self._residual = row.new_zeros(world_size(), size // world_size())
        self._mean_residual = torch.zeros_like(self._residual[0])

    def state(self) -> list[Tensor]:
        """The residuals: of every rank's slice, and of the mean of this rank's own."""
        return [self._residual, self._mean_residual]

    def _average_row(self, row: Tensor) -> int:
        self._residual.view(-1)[:len(row)] += row
        outgoing = self._round(self._residual)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        self._mean_residual += decode(incoming, self._bits, row.dtype).mean(dim=0)
        mine = self._round(self._mean_residual)
        means = torch.empty_like(outgoing).flatten(0, 1)
        dist.all_gather_into_tensor(means, mine)
        row.copy_(decode(means, self._bits, row.dtype)[:len(row)])
        return 2 * (world_size() - 1) * total_bytes([mine])

    def _round(self, wanted: Tensor) -> Tensor:
        """The message nearest to `wanted`, of which it leaves, in place, the residual.

        Raises NotFinite where a scale, or what it means, is past the largest number.
        """
        message = encode(wanted, self._bits)
        wanted -= decode(message, self._bits, wanted.dtype)
        require_finite([wanted], f"a number of --wire int{self._bits}")
        return message
