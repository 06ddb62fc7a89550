"""A 64-bit checksum of each tensor, by which ranks compare weights without sending them.

    checksums(list(model.parameters()))     # VGG-11, 36.9 MB: 13 ms on a CPU
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
# SplitMix64's rounds: shift, then multiply (Steele, Lea and Flood, 2014); a last shift follows.
_ROUNDS, _LAST_SHIFT = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31
_BLOCK = 2**16  # words that are mixed at a time, within a core's cache
_GPU_BLOCK = 2**22


def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 for each tensor, of the bits of its values and their places.

    A change within eight bytes of a tensor always shows. Any other, as of values that are swapped
    or that keep their sum, goes unseen with a probability of 2^-64, as among random numbers: each
    eight bytes and their place are hashed by SplitMix64's function, which is one to one, and the
    hashes added up. It is no defence against a change that is made on purpose to keep it. Memory
    formats make no difference; a tensor that is not contiguous is copied.
    """
    return torch.stack([_checksum(each).to(tensors[0].device) for each in tensors])


def _checksum(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    values = values.contiguous().flatten()
    if values.is_cuda:
        return _sum_of_mixed(_padded(values))
    return torch.tensor(as_int64(_sum_on_cpu(values.view(torch.uint8).numpy())))


def _sum_on_cpu(values: np.ndarray) -> int:
    """As _sum_of_mixed; numpy takes a third of torch's time on a CPU."""
    whole = len(values) // 8 * 8
    words, rest = values[:whole].view(np.uint64), values[whole:].tobytes()
    blocks = [words[start:start + _BLOCK] for start in range(0, len(words), _BLOCK)]
    room = np.empty((2, min(len(words) + 1, _BLOCK)), np.uint64)
    total = sum(_mixed(block, number * _BLOCK, room) for number, block in enumerate(blocks))
    if rest:
        total += _mixed(np.frombuffer(rest.ljust(8, b"\0"), np.uint64), len(words), room)
    return total % 2**64


def _mixed(words: np.ndarray, before: int, room: np.ndarray) -> int:
    """The sum of the hashes of at most _BLOCK words, `before` which so many others stand."""
    mixed, shifted = room[:, :len(words)]
    np.add(words, _places()[:len(words)], out=mixed)
    mixed += np.uint64(before * _GOLDEN % 2**64)
    for shift, factor in _ROUNDS:
        np.right_shift(mixed, np.uint64(shift), out=shifted)
        mixed ^= shifted
        mixed *= np.uint64(factor)
    np.right_shift(mixed, np.uint64(_LAST_SHIFT), out=shifted)
    mixed ^= shifted
    return int(mixed.sum())


@functools.cache
def _places() -> np.ndarray:
    """What each place of a block adds to its word."""
    return np.arange(1, _BLOCK + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _padded(values: Tensor) -> Tensor:
    """The bytes of `values`, (n,), as whole int64 words, the last filled up with zeros."""
    count = values.numel() * values.element_size()
    padded = torch.zeros(-(-count // 8) * 8, dtype=torch.uint8, device=values.device)
    padded[:count] = values.view(torch.uint8)
    return padded.view(torch.int64)


def _sum_of_mixed(words: Tensor) -> Tensor:
    """The sum of the hashes of all words and their places, modulo 2^64; for a GPU."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, block in enumerate(words.split(_GPU_BLOCK)):
        first = number * _GPU_BLOCK + 1
        mixed = torch.arange(first, first + len(block), device=words.device)
        mixed = mixed * as_int64(_GOLDEN) + block
        for shift, factor in _ROUNDS:
            mixed = (mixed ^ _shifted(mixed, shift)) * as_int64(factor)
        total += (mixed ^ _shifted(mixed, _LAST_SHIFT)).sum()
    return total


def _shifted(words: Tensor, shift: int) -> Tensor:
    """The words as unsigned numbers, shifted right."""
    return (words >> shift) & (2**(64 - shift) - 1)


def as_int64(number: int) -> int:
    """A 64-bit number as torch's int64 holds it."""
    return number - 2**64 if number >= 2**63 else number
