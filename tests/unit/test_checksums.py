"""The checksum of a tensor: any change shows, whatever its dtype, layout and size.

Mutations that turn this red: a sum of the bytes, or of the bits as int32, in place of XXH3; drop
contiguous, resolve_conj, resolve_neg, or view_as_real.
"""

import itertools

import pytest
import torch
from torch import Tensor

from common.run.checksums import as_int64, checksums

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool,
          torch.complex64, torch.complex128)
INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def checksum(tensor: Tensor) -> int:
    return int(checksums([tensor])[0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_any_one_bit_shows(dtype):
    weights = torch.randn(5, 7).to(dtype)
    words, bits = weights.view(INTEGERS[dtype]), 8 * dtype.itemsize
    seen = {checksum(weights)}
    for place, bit in itertools.product([(0, 0), (3, 4), (4, 6)], range(bits)):
        mask = 2**bit if bit < bits - 1 else -2**bit
        words[place] ^= mask
        seen.add(checksum(weights))
        words[place] ^= mask
    assert len(seen) == 1 + 3 * bits and checksum(weights) in seen


def last_places(values: Tensor) -> Tensor:
    """+1 and -1 in the last place."""
    return (values.view(torch.int32) + torch.tensor([1, -1], dtype=torch.int32)).view(values.dtype)


@pytest.mark.parametrize("size", [8, 9, 2**17 + 3])
@pytest.mark.parametrize("where, change", [
    ([0, -1], lambda values: values.flip(0)), ([0, 1], lambda values: values.flip(0)),
    ([1, 2], last_places), ([1, 3], last_places), ([1, 3], torch.neg)])
def test_what_a_sum_of_bits_does_not_see(size, where, change):
    weights = torch.randn(size, generator=torch.Generator().manual_seed(size))
    other = weights.clone()
    other[where] = change(weights[where])
    assert checksum(other) != checksum(weights)


def test_permuted_rows_show():
    rows = torch.randn(8, 2**15)
    seen = {checksum(rows[list(order)]) for order in itertools.islice(
        itertools.permutations(range(8)), 0, 40320, 2017)}
    assert len(seen) == 20


def test_pairs_of_changes_are_never_alike():
    """All pairs of two flipped signs in 64 words, and of +1 here and -1 there."""
    words = torch.randint(-2**63, 2**63 - 1, (64,), generator=torch.Generator().manual_seed(2))
    seen = {checksum(words)}
    for one, other in itertools.combinations(range(64), 2):
        for add, subtract in ((-2**63, -2**63), (1, -1)):
            changed = words.clone()
            changed[one] += add
            changed[other] += subtract
            seen.add(checksum(changed))
    assert len(seen) == 1 + 2 * 64 * 63 // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layout_does_not_show_and_a_value_does(dtype):
    maps = torch.randint(0, 2, (4, 3, 5, 2), generator=torch.Generator().manual_seed(1)).to(dtype)
    if dtype.is_complex:
        maps = maps + 1j * maps.flip(0)
    found = checksum(maps)
    spread = torch.zeros(4, 3, 5, 4, dtype=dtype)[..., ::2]
    spread.copy_(maps)
    shifted = torch.cat([maps.flatten()[:1], maps.flatten()])[1:].view_as(maps)
    for same in (maps.contiguous(memory_format=torch.channels_last), spread, shifted,
                 maps.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)):
        assert torch.equal(same, maps) and checksum(same) == found
    assert checksum(maps.transpose(0, 3)) != found and checksum(maps.flip(1)) != found


def test_sizes_down_to_nothing():
    found = [checksum(torch.zeros(size, dtype=torch.uint8)) for size in (0, 1, 8, 9, 17)]
    assert len(set(found)) == 5 and checksum(torch.tensor(1.5)) not in found


def test_the_published_function_and_one_row_for_all_tensors():
    """XXH3 of no bytes, as its reference implementation prints it: ranks of any machine agree."""
    rows = checksums([torch.zeros(0), torch.ones(2), torch.zeros(0, 3)])
    assert rows.shape == (3,) and rows.dtype == torch.int64
    assert rows[0] == rows[2] == as_int64(0x2D06800538D394C2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_both_parts_of_complex_numbers_count(dtype):
    weights = torch.randn(5, dtype=dtype)
    assert checksum(weights) != checksum(weights.conj())
    assert checksum(weights.conj()) == checksum(weights.conj().resolve_conj())
    assert checksum(weights.conj().imag) == checksum(-weights.imag)
