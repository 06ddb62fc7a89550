"""Plan of an epoch: samples by batch, and their augmentation. Pure; ranks are arguments.

(seed, epoch) fixes a permutation of the training set and every sample's crop, flip, cutout and
dropout masks. Each random number is a hash of (seed, epoch, purpose, sample), so it depends on
nothing else: not on the number of ranks, not on where the run was resumed, not on the version of a
random-number library.

    python3 -c "from common.data.epoch_plan import EpochPlan; print(EpochPlan(10, 4).batch(0))"
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

_ORDER, _TOP, _LEFT, _FLIP, _DROPOUT, _VALIDATION, _ROW, _COLUMN = range(8)
_PLACES = np.uint64(2**31)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Augmentation(NamedTuple):
    """How some samples are augmented, each array of shape (n,).

    `top` and `left` of the crop, int64, 0 to 2*padding; `flip`, bool; `row` and `column` of what is
    cut out, int64, 0 to 2^31 - 1: modulo height and width they are a place in the image.
    """

    top: np.ndarray
    left: np.ndarray
    flip: np.ndarray
    row: np.ndarray
    column: np.ndarray


@dataclass(frozen=True)
class EpochPlan:
    """One epoch over `samples` training samples in global batches of `batch_size`.

    A last batch of fewer than `smallest_batch` samples is dropped, on every world size alike, so
    that ranks rarely go without a sample; the run log says how many that were.

    With `alternating_flips` flips are random only in epoch 1; later each sample is flipped in
    every other epoch, so two epochs show both sides (Jordan, arXiv:2404.00498).
    """

    samples: int
    batch_size: int
    seed: int = 0
    epoch: int = 1
    alternating_flips: bool = False

    def at(self, epoch: int) -> "EpochPlan":
        return replace(self, epoch=epoch)

    @cached_property
    def order(self) -> np.ndarray:
        """The permutation of the samples, int64 of shape (samples,)."""
        return np.argsort(self._hash(_ORDER, np.arange(self.samples)), kind="stable")

    @property
    def smallest_batch(self) -> int:
        """The size from which on a last batch is used: 16, or a quarter of a smaller batch."""
        return min(16, max(1, self.batch_size // 4))

    @property
    def iterations(self) -> int:
        """The number of global batches."""
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest >= self.smallest_batch and rest > 0)

    @property
    def dropped(self) -> int:
        """The number of samples that this epoch does not use."""
        return max(0, self.samples - self.iterations * self.batch_size)

    def batch(self, iteration: int) -> np.ndarray:
        """The samples of the global batch, int64; the last one of the epoch may be short."""
        if not 0 <= iteration < self.iterations:
            raise IndexError(f"iteration {iteration} of an epoch of {self.iterations}")
        return self.order[iteration * self.batch_size:(iteration + 1) * self.batch_size]

    def samples_of(self, iteration: int, shards: "ShardRange") -> np.ndarray:
        """The samples of these shards of the global batch, int64; they lie side by side in it."""
        batch = self.batch(iteration)
        first, last = (shard_bounds(len(batch), shard, shards.of)
                       for shard in (shards.first, shards.end - 1))
        return batch[first.start:last.stop]

    def augmentation(self, indices: np.ndarray, padding: int) -> Augmentation:
        """Crop, flip and cutout of the given samples (int64, shape (n,)) in this epoch."""
        offsets = np.uint64(2 * padding + 1)
        return Augmentation(self._below(offsets, _TOP, indices),
                            self._below(offsets, _LEFT, indices), self._flips(indices),
                            self._below(_PLACES, _ROW, indices),
                            self._below(_PLACES, _COLUMN, indices))

    def _below(self, end: np.uint64, purpose: int, indices: np.ndarray) -> np.ndarray:
        return (self._hash(purpose, indices) % end).astype(np.int64)

    def _flips(self, indices: np.ndarray) -> np.ndarray:
        if self.alternating_flips and self.epoch > 1:
            return self.at(1)._flips(indices) ^ (self.epoch % 2 == 0)
        return self._hash(_FLIP, indices) % np.uint64(2) == 1

    def _hash(self, purpose: int, indices: np.ndarray) -> np.ndarray:
        key = mix(self.seed, self.epoch, purpose)
        return _splitmix64(np.uint64(key) + np.asarray(indices).astype(np.uint64))


def kept_units(seed: int, epoch: int, layer: int, indices: np.ndarray, units: int,
               probability: float) -> np.ndarray:
    """Mask of the dropout layer's units that each sample keeps, bool (n, units); `indices` (n,).

    A unit is dropped with `probability`, from 0 up to, not including, 1. Each sample has its own
    SplitMix64 sequence, one number a unit.
    """
    key = np.uint64(mix(seed, epoch, _DROPOUT, layer))
    start = _splitmix64(key + np.asarray(indices).astype(np.uint64))
    numbers = _splitmix64(start[:, None] + _GOLDEN * np.arange(units, dtype=np.uint64))
    return numbers >= np.uint64(int(probability * 2**64))


def validation_split(samples: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(samples to train on, samples to validate on): int64, ascending, without a sample in both.

    Validation gets `fraction` of all, rounded: those whose hash with `seed` is smallest.
    """
    order = np.argsort(_splitmix64(np.uint64(mix(seed, _VALIDATION))
                                   + np.arange(samples, dtype=np.uint64)), kind="stable")
    held_out = round(samples * fraction)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def fingerprint(indices: np.ndarray) -> int:
    """A 64-bit sum of hashes: equal for the same samples in any order, however they are cut up."""
    return int(_splitmix64(np.asarray(indices).astype(np.uint64)).sum(dtype=np.uint64))


def shard_bounds(samples: int, rank: int, world_size: int) -> slice:
    """Cuts `samples` into contiguous shards that differ by one at most, the larger ones first."""
    base, extra = divmod(samples, world_size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))


@dataclass(frozen=True)
class ShardRange:
    """The shards from `first` up to, not including, `end`, of the `of` that each batch is cut into.
    """

    first: int = 0
    end: int = 1
    of: int = 1

    @property
    def size(self) -> int:
        return self.end - self.first


def shard_range(place: int, places: int, shards: int | None = None) -> ShardRange:
    """The shards of one of `places` that compute `shards` shards (None: one each) together.

    Their numbers differ by one at most, and the ranges of 2k places are the halves of those of k.
    """
    shards = shards or places
    first, end = (-(-each * shards // places) for each in (place, place + 1))
    return ShardRange(first, end, shards)


def mix(*numbers: int) -> int:
    """One 64-bit number that depends on all the given whole numbers and on their order."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _splitmix64(key ^ np.uint64(number % 2**64))
    return int(key[0])


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of each uint64, modulo 2^64."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
