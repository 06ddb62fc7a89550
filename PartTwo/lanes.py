"""Which gradients overtake the others: see cross_step.py. Without torch: predictions ask too."""

from collections.abc import Sequence

# Of the gradient's bytes, those of the first layers that overtake the others. In VGG-11 they belong
# to four of eight convolutions, which take two thirds of forward.
EXPRESS_PART = 1 / 8


def first_of_express(sizes: Sequence[float]) -> int:
    """The number of the first bucket on the express lane; always at least the last one is.

    `sizes` are the buckets' in bytes, those of the last layers first.
    """
    first = len(sizes) - 1
    while first > 0 and sum(sizes[first - 1:]) <= EXPRESS_PART * sum(sizes):
        first -= 1
    return first
