"""Compares the rows that all ranks post about their training: which rank differs, and in what.

The leader compares. Pure: no store, no tensors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SAME_SAMPLES = 0.75  # of two ranks' first epochs: beyond what chance or padding gives


class RankRow(NamedTuple):
    """The state of one rank before its optimizer's next step.

    `weights` and `gradients` are checksums: one a tensor, or one for all of them. `batches` are the
    fingerprints of those since the last row and `sizes` their numbers of samples; `seen` counts all
    batches. `first_epoch` is SeenSamples' sketch. `is_wrapped` says whether the loop has called a
    DistributedDataParallel.
    """

    steps: int
    weights: list[int]
    gradients: list[int]
    batches: list[int]
    sizes: list[int]
    seen: int
    first_epoch: list[int]
    is_wrapped: bool = False


class Answer(NamedTuple):
    """The leader's answer to the rows: sentences, if any.

    `closely` asks for rows with a checksum for each tensor, before every step.
    """

    failure: str = ""
    warning: str = ""
    closely: bool = False


@dataclass
class Comparison:
    """Remembers, on the leader, since when the ranks differ.

    Weights that differ while gradients do are not yet a fault: they may be averaged every few
    steps. They are one if they have not been equal in `every` comparisons, or never before the end.
    """

    names: Sequence[str]
    every: int
    strict: bool = False
    _same_batches: int = 0
    _apart: int = 0
    _have_agreed: bool = False
    _averages: bool = False
    _told_same_samples: bool = False

    def answer(self, rows: Sequence[RankRow], is_last: bool = False) -> Answer:
        """Compares one row of each rank, by rank."""
        failure = self._batches(rows) or self._weights(rows, is_last)
        warning = "" if failure else self._first_epochs(rows)
        if self.strict:
            failure = failure or _sizes(rows) or warning
        return Answer(failure, warning, self._apart > 0)

    def _weights(self, rows: Sequence[RankRow], is_last: bool) -> str:
        gradients = [row.gradients for row in rows]
        if any(gradients[0]):  # at the end they may have been set to None already
            self._averages = all(each == gradients[0] for each in gradients)
        rank, other = odd_one([row.weights for row in rows])
        if rank == other:
            self._apart, self._have_agreed = 0, self._have_agreed or rows[0].steps > 0
            return ""
        self._apart += 1
        steps, where = rows[rank].steps, self._where(rows[rank].weights, rows[other].weights)
        if steps == 0:
            return (f"rank {rank} begins with other weights than rank {other}{where}: give all "
                    "ranks the same before the first step, by wrapping the model in "
                    "DistributedDataParallel, or by dist.broadcast")
        if self._averages:
            is_first = self._apart == 1 and not is_last  # the next rows will say which tensor it is
            return "" if is_first else (
                f"rank {rank} has other weights than rank {other} after {steps} steps{where}, "
                "though their gradients are equal: the replicas drift. Give every rank the same "
                "learning rate and optimizer state, and change no weights on one rank alone")
        if self._apart > self.every or (is_last and not self._have_agreed):
            return self._not_averaged(
                f"after {steps} steps rank {rank} has other gradients and weights than rank "
                f"{other}{where}", all(row.is_wrapped for row in rows))
        return ""

    def _not_averaged(self, differ: str, is_wrapped: bool) -> str:
        """A sentence on ranks that `differ`, and what to do."""
        every = ("; weights that are averaged every N steps need witness(..., every=N), which is "
                 f"{self.every} now")
        if is_wrapped:
            return (f"{differ}, though DistributedDataParallel was called: clip or change "
                    "gradients on every rank alike, and leave no_sync() before the last backward "
                    f"of a step{every}")
        return (f"nobody averages: {differ}. Wrap the model in DistributedDataParallel and call "
                f"what it returns, or average the gradients before optimizer.step(){every}")

    def _where(self, one: list[int], other: list[int]) -> str:
        different = [name for name, a, b in zip(self.names, one, other, strict=False) if a != b]
        if len(one) != len(self.names) or not different:
            return ""
        return f" ({len(different)} of {len(one)} tensors, the first is {different[0]})"

    def _batches(self, rows: Sequence[RankRow]) -> str:
        """Names two ranks that got the same batch twice in a row: once may be chance."""
        batches = [tuple(row.batches) for row in rows]
        if not all(batches):
            return ""
        pairs = ((batches.index(each), rank) for rank, each in enumerate(batches))
        one, other = next((pair for pair in pairs if pair[0] != pair[1]), (0, 0))
        self._same_batches = self._same_batches + 1 if other else 0
        if self._same_batches < 2:
            return ""
        return (f"rank {other} trains on the same samples as rank {one}, batch for batch: give "
                "each rank its own, by DistributedSampler(dataset) in the DataLoader")

    def _first_epochs(self, rows: Sequence[RankRow]) -> str:
        first = rows[0].first_epoch
        if self._told_same_samples or not all(row.first_epoch for row in rows):
            return ""
        self._told_same_samples = True
        for rank, row in enumerate(rows[1:], 1):
            both = set(first) & set(row.first_epoch)
            if len(both) > SAME_SAMPLES * max(len(first), len(row.first_epoch)):
                return (f"rank {rank} has gone through the same samples as rank 0 in the first "
                        f"epoch, in another order: {len(rows)} ranks train {len(rows)} epochs in "
                        "one; for one, give each rank its own samples by "
                        "DistributedSampler(dataset)")
        return ""


def odd_one(values: Sequence[object]) -> tuple[int, int]:
    """The first rank whose value most ranks do not have, and the first that has theirs.

    Twice the same rank where all are equal; a tie goes against the higher rank.
    """
    usual, _ = Counter(map(repr, values)).most_common(1)[0]
    other = next(rank for rank, value in enumerate(values) if repr(value) == usual)
    return next((rank for rank, value in enumerate(values) if repr(value) != usual), other), other


def _sizes(rows: Sequence[RankRow]) -> str:
    """Warns of batches of other sizes: dividing by the number of ranks does not average them."""
    for rank, row in enumerate(rows[1:], 1):
        for index, (here, there) in enumerate(zip(row.sizes, rows[0].sizes, strict=False)):
            if here != there:
                batch = row.seen - len(row.sizes) + index
                return (f"batch {batch} of rank {rank} holds {here} samples and that of rank 0 "
                        f"{there}: the mean of their means is not the mean over the samples. "
                        "Make them equal, by DistributedSampler or drop_last=True")
    return ""


def uneven(lengths: Sequence[int | None]) -> str:
    """The error for loaders of different lengths, by rank; "" if they are equal or unknown."""
    known = {rank: length for rank, length in enumerate(lengths) if length is not None}
    if len(set(known.values())) < 2:
        return ""
    few, many = min(known, key=lambda rank: known[rank]), max(known, key=lambda rank: known[rank])
    return (f"rank {few}'s loader has {known[few]} batches and rank {many}'s {known[many]}: rank "
            f"{many} would wait for ever in batch {known[few] + 1}. Give every rank as many, by "
            "DistributedSampler or drop_last=True")
