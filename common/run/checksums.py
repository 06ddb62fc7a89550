"""A 64-bit checksum of each tensor, by which ranks compare weights without sending them.

    checksums(list(model.parameters()))     # VGG-11, 36.9 MB: 1 ms on a CPU, 4 ms channels last
"""

from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor


def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """Returns one int64 for each tensor, (n,), on the first one's device: XXH3 of its bytes.

    The bytes are those of the values in row-major order, so memory formats make no difference; a
    tensor that is not contiguous, or is on a GPU, is copied. A change of any kind, as of a last bit
    or of values that are swapped, goes unseen with a probability of 2^-64. It does not protect
    against deliberate changes. (XXH3: Yann Collet, github.com/Cyan4973/xxHash.)
    """
    return torch.tensor([_checksum(each) for each in tensors], dtype=torch.int64,
                        device=tensors[0].device)


def _checksum(tensor: Tensor) -> int:
    values = tensor.detach().resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    values = values.cpu().contiguous().flatten()
    return as_int64(xxhash.xxh3_64_intdigest(values.view(torch.uint8).numpy().data))


def as_int64(number: int) -> int:
    """A 64-bit number as torch's int64 holds it."""
    return number - 2**64 if number >= 2**63 else number
