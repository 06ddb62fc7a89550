"""In what order and pieces gradients travel. Without torch: predictions read it too."""

from collections.abc import Sequence

# Of a gradient, what the pipelined strategy sends at a time: see pipelined.py.
CHUNK_BYTES = 1 << 18
# And on virtual nodes a lane of on_virtual_nodes.py.
PIECE_BYTES = 1 << 22
# Of the gradient's bytes, those of the first layers, which overtake all others: see cross_step.py.
# In VGG-11 they belong to four of eight convolutions, which take two thirds of forward.
EXPRESS_PART = 1 / 8


def first_of_express(sizes: Sequence[float]) -> int:
    """The number of the first bucket on the express lane; always at least the last one is.

    `sizes` are the buckets' in bytes, those of the last layers first.
    """
    first = len(sizes) - 1
    while first > 0 and sum(sizes[first - 1:]) <= EXPRESS_PART * sum(sizes):
        first -= 1
    return first
