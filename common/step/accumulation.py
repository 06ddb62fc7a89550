"""One step of the optimizer from several passes over parts of a rank's batch.

For when the batch is too large for a rank's memory (--accumulate), and where a rank computes
several virtual nodes: each part is then the shard of one of them, to the sample.

    python3 PartOne/main.py --workload cifar10-vgg11 --accumulate 4
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from torch import Tensor

from common.data.epoch_plan import shard_bounds
from common.data.loaders import Batch


class Part(NamedTuple):
    """Samples of a Batch that one pass computes.

    Its fields are the Batch's; `shard` is the number of the virtual node, where there are any.
    """

    inputs: Tensor
    targets: Tensor
    weight: float
    indices: np.ndarray | None
    shard: int

    def computed_by(self, forward: "Callable[[Part], Tensor]") -> Tensor:
        """The loss that `forward` makes of this part."""
        return forward(self)


def micro_batches(batch: Batch, count: int) -> Iterator[tuple[Part, bool]]:
    """Each shard of `batch` in `count` parts, with whether it is the last; the larger ones first.

    A part's weight is its part of the batch's, so gradients of weighted mean losses add up to the
    gradient of the whole. No part is empty: fewer samples than `count` give fewer parts.
    """
    samples = len(batch.targets)
    count = max(1, min(count * batch.shards.size, samples))
    for number in range(count):
        cut = shard_bounds(samples, number, count)
        weight = batch.weight * Fraction(cut.stop - cut.start, samples)
        indices = None if batch.indices is None else batch.indices[cut]
        yield (Part(batch.inputs[cut], batch.targets[cut], float(weight), indices,
                    batch.shards.first + number), number == count - 1)
