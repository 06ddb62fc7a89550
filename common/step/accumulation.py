"""Gradient accumulation: one step of the optimizer from several passes over parts of the batch.

For when a rank's shard is too large for its memory, or to train on one rank as K would: the parts
are cut as shards are, so 1 rank with --accumulate 4 computes the very batches of 4 ranks.

    python3 PartOne/main.py --workload cifar10-vgg11 --accumulate 4
"""

from collections.abc import Iterator

from common.data.epoch_plan import shard_bounds
from common.data.loaders import Batch


def micro_batches(batch: Batch, count: int) -> Iterator[tuple[Batch, bool]]:
    """`batch` in `count` parts, the larger ones first, each with whether it is the last.

    A part's weight is its part of the batch's, so gradients of weighted mean losses add up to the
    gradient of the whole. No part is empty: fewer samples than `count` give fewer parts.
    """
    samples = len(batch.targets)
    count = max(1, min(count, samples))
    for number in range(count):
        cut = shard_bounds(samples, number, count)
        weight = batch.weight if count == 1 else batch.weight * (cut.stop - cut.start) / samples
        indices = None if batch.indices is None else batch.indices[cut]
        yield (Batch(batch.inputs[cut], batch.targets[cut], weight, indices), number == count - 1)
