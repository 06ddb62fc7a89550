"""Fingerprints of the samples that a training loop hands to its model, for comparison across ranks.

A sample's fingerprint is a hash of a few hundred of its bytes; the random numbers of the program
are not touched, and on a GPU nothing is waited for until the fingerprints are asked for.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from common.data.loaders import epoch_sampler, length_of

ELEMENTS = 256  # of a sample, evenly spread
SKETCH_SIZE = 64
HALF_RANGE = 2**63


@dataclass
class SeenSamples:
    """The batches of this rank since they were last taken, and a sketch of its first epoch.

    `loader` may be anything: what it does not tell (its length, a sampler with set_epoch) is not
    judged. A batch that is passed through the model several times in a row counts once.
    """

    loader: Any = None
    batches: int = 0
    _new: list[tuple[Tensor, int | None, int]] = field(default_factory=list)
    _last: int | None = None
    _epoch: tuple[int | None, int] = (None, 0)  # its number, and the optimizer's steps before it
    _of_epoch: int = 0
    _samples: int = 0
    _sketch: set[int] = field(default_factory=set)

    @property
    def length(self) -> int | None:
        """The loader's number of batches, where it knows it."""
        return length_of(self.loader)

    def note(self, inputs: Any, steps: int) -> None:
        """Remembers one batch, given after so many `steps` of the optimizer."""
        rows = fingerprints(inputs)
        if rows is not None:
            epoch = getattr(epoch_sampler(self.loader), "epoch", None)
            self._new.append((rows, epoch, steps))

    def take(self) -> tuple[list[int], list[int]]:
        """The fingerprints of the batches since the last call, and their numbers of samples."""
        marks, sizes = [], []
        for rows, epoch, steps in self._new:
            hashes = rows.tolist()
            mark = sum(hashes)
            if mark != self._last:
                self._count(hashes, epoch, steps)
                marks.append(mark)
                sizes.append(len(hashes))
            self._last = mark
        self._new.clear()
        return marks, sizes

    def _count(self, hashes: list[int], epoch: int | None, steps: int) -> None:
        self.batches += 1
        if epoch != self._epoch[0] or self.batches == 1:
            self._epoch, self._of_epoch = (epoch, steps), 0
        self._of_epoch += 1
        if self.length is not None and self.batches <= self.length:
            self._samples += len(hashes)
            self._sketch = set(sorted(self._sketch.union(hashes))[:SKETCH_SIZE])

    def first_epoch(self) -> list[int]:
        """The least fingerprints of the first epoch's samples, once it is over.

        Empty before, and where the inputs have few different values, so that equal fingerprints
        would not mean equal samples.
        """
        is_over = self.length is not None and self.batches >= self.length
        distinct = len(self._sketch)
        if distinct == SKETCH_SIZE:  # the least of so many evenly distributed numbers
            distinct = round(SKETCH_SIZE * 2 * HALF_RANGE / (max(self._sketch) + HALF_RANGE + 1))
        return sorted(self._sketch) if is_over and 2 * distinct > self._samples else []

    def forgotten_set_epoch(self, steps: int) -> bool:
        """True if a shuffling sampler is past its epoch's last batch without a call of set_epoch.

        `steps` are all that the optimizer has begun: a model may be called several times a batch,
        and an optimizer too, but hardly both.
        """
        begun = min(steps - self._epoch[1], self._of_epoch)
        return (self.length is not None and begun > self.length
                and getattr(epoch_sampler(self.loader), "shuffle", False))


def fingerprints(inputs: Any) -> Tensor | None:
    """One int64 a sample, (n,), from all tensors whose first dimension is the first tensor's.

    Sparse, nested and quantised tensors are skipped; None if no other tensor is left.
    """
    rows: Tensor | None = None
    for tensor in filter(_has_plain_rows, _tensors(inputs)):
        if tensor.ndim and tensor.numel() and (rows is None or len(tensor) == len(rows)):
            rows = (0 if rows is None else 31 * rows) + _hashes(tensor.detach())
    return rows


def _has_plain_rows(tensor: Tensor) -> bool:
    """True if the bytes of each row can be read."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)


def _hashes(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(len(tensor), -1)
    few = flat[:, ::max(1, flat.shape[1] // ELEMENTS)].resolve_conj().resolve_neg().contiguous()
    words = few.view(torch.uint8).long()
    return (words * _multipliers(words.shape[1], words.device)).sum(1)


@functools.cache
def _multipliers(count: int, device: torch.device) -> Tensor:
    """Numbers over the whole range of int64, the same on every rank."""
    numbers = torch.randint(-HALF_RANGE, HALF_RANGE - 1, (count,),
                            generator=torch.Generator().manual_seed(count))
    return numbers.to(device)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)
