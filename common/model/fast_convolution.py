"""3x3 convolutions of small maps with fewer multiplications, as bilinear algorithms.

Along one axis a convolution with zero padding is

    outputs @ ((filters @ w) * (inputs @ x))

for fixed small matrices: x the map's positions, w the three taps, * between numbers. Two axes take
the Kronecker products of the matrices, and for channels * becomes a matrix product. All that is
left is matrix products, which every processor does best.

- "toeplitz" for maps of 2x2: 9 products instead of 16. [w1 w2; w0 w1] times a vector is Karatsuba's
  trick for a Toeplitz matrix (Winograd, Arithmetic Complexity of Computations, 1980).
- "winograd-2" and "winograd-4": 4 or 2.25 products an output instead of 9, in tiles of 2x2 or 4x4
  outputs (Lavin and Gray, arXiv:1509.09308). winograd-4 rounds two to five times as much as a
  direct convolution, the others no more; see tests/unit/test_fast_convolution.py.

    python3 benchmarks/convolutions.py
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from common.core.torch_private import change_class

# Samples handled at a time: few enough that their products stay in the processor's cache.
CHUNK = 64
# Filters whose transform is rounded at a time, for the same reason.
COLUMNS = 16384


class Axis(NamedTuple):
    """One tile of a one-dimensional algorithm: `inputs` (products, tile + overlap), `filters`
    (products, 3), `outputs` (tile, products), float64. `before`: input positions before the tile.
    """

    inputs: Tensor
    filters: Tensor
    outputs: Tensor
    before: int


def _winograd(*points: float) -> Axis:
    """The algorithm that evaluates at `points` and at infinity: len(points) - 2 outputs a tile.

    Toom and Cook's product of polynomials, read backwards; the points decide how much it rounds.
    """
    inputs = torch.linalg.inv(_powers(points, len(points) + 1)).T
    return Axis(inputs, _powers(points, 3), _powers(points, len(points) - 1).T, before=1)


def _powers(points: tuple[float, ...], count: int) -> Tensor:
    """Row p: the first `count` powers of point p; the last row picks the highest power."""
    rows = torch.tensor(points, dtype=torch.float64)[:, None] ** torch.arange(count)
    return torch.cat([rows, torch.eye(count, dtype=torch.float64)[-1:]])


AXES = {
    "toeplitz": Axis(
        inputs=torch.tensor([[1.0, 1], [0, 1], [1, 0]], dtype=torch.float64),
        filters=torch.tensor([[0.0, 1, 0], [0, -1, 1], [1, -1, 0]], dtype=torch.float64),
        outputs=torch.tensor([[1.0, 1, 0], [1, 0, 1]], dtype=torch.float64), before=0),
    "winograd-2": _winograd(0, 1, -1),
    # The usual points 0, 1, -1, 2, -2 round twice as much.
    "winograd-4": _winograd(0, 3 / 4, -3 / 4, 3 / 2, -3 / 2),
}


class Transforms(NamedTuple):
    """The algorithm for whole maps of S x S positions, in P products for each of T tiles.

    `inputs` (P*T, S*S), `filters` (P, 9), `outputs` (S*S, P*T); rows and columns count products
    first, then tiles.
    """

    inputs: Tensor
    filters: Tensor
    outputs: Tensor


def fits(name: str, size: int) -> bool:
    """Whether the algorithm `name` can do maps of `size` x `size`."""
    tile = len(AXES[name].outputs)
    return size == tile or (size % tile == 0 and AXES[name].before > 0)


@lru_cache
def transforms(name: str, size: int, dtype: torch.dtype) -> Transforms:
    """The matrices of the algorithm `name` for maps of `size` x `size`."""
    axis = AXES[name]
    tile, products = axis.outputs.shape
    tiles = size // tile
    inputs = torch.zeros(products, tiles, size, dtype=torch.float64)
    outputs = torch.zeros(size, products, tiles, dtype=torch.float64)
    for each in range(tiles):
        outputs[each * tile:(each + 1) * tile, :, each] = axis.outputs
        for column, values in enumerate(axis.inputs.T):
            if 0 <= (position := each * tile - axis.before + column) < size:
                inputs[:, each, position] = values
    both_inputs = torch.einsum("pix,qjy->pqijxy", inputs, inputs)
    both_outputs = torch.einsum("xpi,yqj->xypqij", outputs, outputs)
    count = (products * tiles) ** 2
    matrices = (both_inputs.reshape(count, -1), torch.kron(axis.filters, axis.filters),
                both_outputs.reshape(-1, count))
    return Transforms(*(matrix.to(dtype).contiguous() for matrix in matrices))


class _Convolve(torch.autograd.Function):
    """`x` (N, C, S, S) and `weight` (K, C, 3, 3) to (N, K, S, S); channels_last throughout.

    Computes in the dtype of `x`; the filters are transformed in that of `weight`, which may be
    wider. Both gradients are the transposed algorithm: the same products, read backwards.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, name: str) -> Tensor:
        into, _, out = transforms(name, x.shape[-1], x.dtype)
        filters = _transformed_filters(weight, name, x)
        result = x.new_empty(len(x), len(weight), *x.shape[2:]).to(
            memory_format=torch.channels_last)
        for start in range(0, len(x), CHUNK):
            part = slice(start, start + CHUNK)
            products = torch.bmm(_spread(into, x[part], len(filters)), filters.mT)
            _write(result[part], out @ products.view(out.shape[1], -1), bias)
        # Four times the size of the weights. In their dtype backward makes them again, which takes
        # no time to speak of; with the rounding to another dtype it would be a step's twentieth.
        ctx.save_for_backward(x, weight, filters if x.dtype != weight.dtype else None)
        ctx.name, ctx.has_bias = name, bias is not None
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, filters = ctx.saved_tensors
        into, _, out = transforms(ctx.name, x.shape[-1], x.dtype)
        if filters is None:
            filters = _transformed_filters(weight, ctx.name, x)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_filters = torch.zeros_like(filters) if ctx.needs_input_grad[1] else None
        for start in range(0, len(x), CHUNK):
            part = slice(start, start + CHUNK)
            spread = _spread(out.T, gradient[part], len(filters))
            if of_filters is not None:
                of_filters.baddbmm_(spread.mT, _spread(into, x[part], len(filters)))
            if of_x is not None:
                products = torch.bmm(spread, filters)
                _write(of_x[part], into.T @ products.view(into.shape[0], -1), None)
        of_weight = None
        if of_filters is not None:
            of_weight = _filters_gradient(of_filters, weight, ctx.name, x)
        of_bias = gradient.sum((0, 2, 3)) if ctx.has_bias else None
        return of_x, of_weight, of_bias, None


def _transformed_filters(weight: Tensor, name: str, x: Tensor) -> Tensor:
    """(products, K, C), in the dtype of `x`."""
    matrix = transforms(name, x.shape[-1], weight.dtype).filters
    taps = weight.permute(2, 3, 0, 1).reshape(9, -1)
    result = x.new_empty(len(matrix), taps.shape[1])
    for part in _columns(taps):
        result[:, part] = matrix @ taps[:, part]
    return result.view(len(matrix), *weight.shape[:2])


def _filters_gradient(gradient: Tensor, weight: Tensor, name: str, x: Tensor) -> Tensor:
    """The gradient of `weight` from that of its transform."""
    matrix = transforms(name, x.shape[-1], weight.dtype).filters
    products, result = gradient.view(len(matrix), -1), torch.empty_like(weight)
    taps = weight.new_empty(9, products.shape[1])
    for part in _columns(products):
        taps[:, part] = matrix.T @ products[:, part].to(weight.dtype)
    result.permute(2, 3, 0, 1).copy_(taps.view(3, 3, *weight.shape[:2]))
    return result


def _columns(matrix: Tensor) -> Iterator[slice]:
    """Parts of a wide matrix that stay in the processor's cache while their dtype changes."""
    for start in range(0, matrix.shape[1], COLUMNS):
        yield slice(start, start + COLUMNS)


def _spread(matrix: Tensor, maps: Tensor, products: int) -> Tensor:
    """`matrix` (P*T, S*S) times the positions of `maps` (n, C, S, S): (P, T*n, C)."""
    positions = maps.permute(2, 3, 0, 1).reshape(matrix.shape[1], -1)
    return (matrix @ positions).view(products, -1, maps.shape[1])


def _write(maps: Tensor, positions: Tensor, bias: Tensor | None) -> None:
    """Writes `positions` (S*S, n*C), plus `bias` (C,), into `maps` (n, C, S, S)."""
    target = maps.permute(2, 3, 0, 1)
    if bias is None:
        target.copy_(positions.view(target.shape))
    else:
        torch.add(positions.view(target.shape), bias, out=target)


class FastConv2d(nn.Conv2d):
    """nn.Conv2d of 3x3, stride 1, padding 1, by the algorithm `algorithm` where it fits the map."""

    algorithm: str

    def forward(self, input: Tensor) -> Tensor:
        height, width = input.shape[-2:]
        if height != width or input.dim() != 4 or not fits(self.algorithm, height):
            return super().forward(input)
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return _Convolve.apply(input, self.weight, self.bias, self.algorithm)


def compute_by(algorithm: str, layer: nn.Conv2d) -> None:
    """Makes a plain 3x3 `layer` a FastConv2d of that algorithm, in place: only its class changes.

    Parameters, hooks and settings stay the very same objects.
    """
    change_class(layer, FastConv2d)
    cast(FastConv2d, layer).algorithm = algorithm
