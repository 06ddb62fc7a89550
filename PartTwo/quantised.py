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
from PartTwo.by_hand import Flat

BITS = {"int8": 8, "int4": 4}
BLOCK = 256  # elements that share a scale
SCALE_BYTES = 2


def encode(row: Tensor, bits: int) -> Tensor:
    """Rounds blocks of BLOCK elements to integers of 4 or 8 bits, and their scale to bf16.

    `row` is (..., n) of any floating-point dtype, n a multiple of BLOCK, all of it finite; the
    result is uint8, (..., n / BLOCK, bytes of a block). In every block the integer furthest from 0
    is 7 or 127, whose meaning is the largest magnitude there.
    """
    largest_code = 2 ** (bits - 1) - 1
    blocks = row.unflatten(-1, (-1, BLOCK))
    scale = (blocks.abs().amax(dim=-1, keepdim=True) / largest_code).bfloat16()
    # No code gets past the largest: bf16 is off by a 512th at most. Where all is 0 the scale is 0,
    # and so is what any code there means.
    codes = (blocks / scale.to(row.dtype)).round_().to(torch.int8)
    if bits == 4:
        codes = (codes[..., ::2] << 4) | (codes[..., 1::2] & 15)
    return torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], dim=-1)


def decode(message: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """What `encode` rounded to: (..., blocks, bytes of a block) becomes (..., n) of `dtype`."""
    codes = message[..., :-SCALE_BYTES].view(torch.int8)
    scale = message[..., -SCALE_BYTES:].contiguous().view(torch.bfloat16)
    if bits == 4:
        codes = torch.stack([codes >> 4, ((codes & 15) ^ 8) - 8], dim=-1).flatten(-2)
    return (codes.to(dtype) * scale.to(dtype)).flatten(-2)


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
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in trained)
        size += -size % (BLOCK * world_size())
        self._residual = trained[0].detach().new_zeros(world_size(), size // world_size())
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
        """The message nearest to `wanted`, of which it leaves, in place, the residual."""
        message = encode(wanted, self._bits)
        wanted -= decode(message, self._bits, wanted.dtype)
        return message
