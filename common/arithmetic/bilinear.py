"""3x3 convolutions of small maps with fewer multiplications, as bilinear algorithms.

Along one axis a convolution with zero padding is

    outputs @ ((filters @ w) * (inputs @ x))

for fixed small matrices: x a tile's positions, w the three taps, * between numbers. Two axes take
the matrices on each, and for channels * becomes a matrix product.

- "toeplitz" for maps of 2x2: 9 products instead of 16. [w1 w2; w0 w1] times a vector is Karatsuba's
  trick for a Toeplitz matrix (Winograd, Arithmetic Complexity of Computations, 1980).
- "winograd-2" and "winograd-4": 4 or 2.25 products an output instead of 9, in tiles of 2x2 or 4x4
  outputs (Lavin and Gray, arXiv:1509.09308). winograd-4 rounds two to five times as much as a
  direct convolution, the others no more; see tests/unit/test_fast_convolution.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Tiling(NamedTuple):
    """A matrix (products, positions), float64, for both axes of each tile of a map.

    Tiles begin `tile` positions apart, the first of them `before` positions before the map, which
    is zero outside.
    """

    name: str
    matrix: Tensor
    tile: int
    before: int


class Algorithm(NamedTuple):
    """How to transform maps of inputs, filters of 3x3, and (read backwards) maps of outputs."""

    inputs: Tiling
    filters: Tiling
    outputs: Tiling


def _algorithm(name: str, inputs: Tensor, filters: Tensor, outputs: Tensor,
               before: int) -> Algorithm:
    """`inputs` (products, tile + overlap), `filters` (products, 3), `outputs` (tile, products)."""
    tile, word = len(outputs), name.replace("-", "_")
    return Algorithm(Tiling(f"{word}_inputs", inputs, tile, before),
                     Tiling(f"{word}_filters", filters, 3, 0),
                     Tiling(f"{word}_outputs", outputs.T.contiguous(), tile, 0))


def _winograd(name: str, *points: float) -> Algorithm:
    """The algorithm that evaluates at `points` and at infinity: len(points) - 2 outputs a tile.

    Toom and Cook's product of polynomials, read backwards; the points decide how much it rounds.
    """
    inputs = torch.linalg.inv(_powers(points, len(points) + 1)).T.contiguous()
    # What should be zero is, and takes no time.
    inputs[inputs.abs() < 1e-12] = 0
    return _algorithm(name, inputs, _powers(points, 3), _powers(points, len(points) - 1).T,
                      before=1)


def _powers(points: tuple[float, ...], count: int) -> Tensor:
    """Row p: the first `count` powers of point p; the last row picks the highest power."""
    rows = torch.tensor(points, dtype=torch.float64)[:, None] ** torch.arange(count)
    return torch.cat([rows, torch.eye(count, dtype=torch.float64)[-1:]])


ALGORITHMS = {
    "toeplitz": _algorithm(
        "toeplitz", torch.tensor([[1.0, 1], [0, 1], [1, 0]], dtype=torch.float64),
        torch.tensor([[0.0, 1, 0], [0, -1, 1], [1, -1, 0]], dtype=torch.float64),
        torch.tensor([[1.0, 1, 0], [1, 0, 1]], dtype=torch.float64), before=0),
    "winograd-2": _winograd("winograd-2", 0, 1, -1),
    # The usual points 0, 1, -1, 2, -2 round twice as much.
    "winograd-4": _winograd("winograd-4", 0, 3 / 4, -3 / 4, 3 / 2, -3 / 2),
}


def fits(name: str, size: int) -> bool:
    """Returns True if the algorithm `name` can compute maps of `size` x `size`."""
    inputs = ALGORITHMS[name].inputs
    return size == inputs.tile or (size % inputs.tile == 0 and inputs.before > 0)
