"""The compiled inner loops of a step on a CPU: transforms of fast convolutions, pooled batch norm.

Each has a form in torch of the same bits, in the module that calls it.

    python3 -c "from common.model.kernels import why_not; print(why_not() or 'compiled')"
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from common.model.bilinear import ALGORITHMS
from common.model.compiled import Compiled, compiled

LANES = 16  # channels that are handled at once
FILES = ("vectors.h", "transforms.cpp", "pooling.cpp")
NAMES = {torch.float32: "float", torch.bfloat16: "BFloat16"}


def run(name: str, tensors: Sequence[Tensor | None], maps: Tensor) -> bool:
    """Whether there is a compiled `name` for `maps` (n, C, H, W), and it has run.

    It gets the tensors, None as a null pointer, the sizes of `maps` and torch's threads. All must
    be contiguous, maps as channels_last; the caller must know that dtypes and sizes are right.
    """
    samples, channels, height, width = maps.shape
    if channels % LANES or maps.device.type != "cpu" or not maps.is_contiguous(
            memory_format=torch.channels_last):
        return False
    function = getattr(library().library, name, None)
    if function is None:
        return False
    function(*(ctypes.c_void_p(None if each is None else each.data_ptr()) for each in tensors),
             *map(ctypes.c_long, (samples, channels, height, width)),
             ctypes.c_int(torch.get_num_threads()))
    return True


def why_not() -> str:
    """Why a step is slower here than it could be; "" where it is not."""
    return library().why_not


@cache
def library() -> Compiled:
    """What is compiled when it is first needed, and found in the user's cache folder later."""
    return compiled("\n".join(_source()))


def _source() -> Iterator[str]:
    """The files, and one function for each algorithm's matrices and pair of dtypes."""
    for name in FILES:
        yield (Path(__file__).parent / "cpp" / name).read_text()
    for algorithm in ALGORITHMS.values():
        for tiling in algorithm:
            yield _matrix(tiling.name, tiling.matrix)
            yield _matrix(f"{tiling.name}_transposed", tiling.matrix.T)
            for dtype in NAMES.values():
                maps = "float" if tiling is algorithm.filters else dtype
                yield f"FUNCTIONS({tiling.name}, {tiling.tile}, {tiling.before}, {maps}, {dtype})"


def _matrix(name: str, matrix: Tensor) -> str:
    rows = ",\n    ".join("{" + ", ".join(f"{value.hex()}f" for value in row) + "}"
                          for row in matrix.float().tolist())
    return (f"constexpr Matrix<{matrix.shape[0]}, {matrix.shape[1]}> {name}{{{{\n"
            f"    {rows}}}}};")
