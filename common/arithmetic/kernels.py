"""The compiled inner loops of a step on a CPU.

Transforms and pooled batch norm have a form in torch of the same bits, in the modules that call
them. Products and what is computed as one round otherwise than torch: `products` and `algorithms`
of choice.py, in each checkpoint, say what ran.

    python3 -m common.arithmetic.kernels     # compiles them for machines without a compiler
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from common.arithmetic.bilinear import ALGORITHMS
from common.arithmetic.compiled import Compiled, compiled, made_for_any

LANES = 16  # channels that are handled at once
FILES = ("vectors.h", "transforms.cpp", "batch_norm.cpp", "pooling.cpp", "first_block.cpp",
         "products.cpp", "softmax.cpp")
NAMES = {torch.float32: "float", torch.bfloat16: "BFloat16"}
# What maps and their tiles may be.
OF_MAPS = ("float, float", "BFloat16, BFloat16", "BFloat16, float")
OF_FILTERS = ("float, float", "float, BFloat16")


def run(name: str, tensors: Sequence[Tensor | None], sizes: Sequence[int]) -> bool:
    """Runs the compiled function `name`; returns False if it does not exist.

    It gets the tensors, None as a null pointer, the sizes and torch's threads. The caller must know
    that dtypes, sizes and layouts are right.
    """
    function = getattr(library().library, name, None)
    if function is None:
        return False
    function(*(ctypes.c_void_p(None if each is None else each.data_ptr()) for each in tensors),
             *map(ctypes.c_long, sizes), ctypes.c_int(torch.get_num_threads()))
    return True


def are_float32(*tensors: Tensor | None) -> bool:
    """Returns True if all are float32; None, passed as a null pointer, is allowed."""
    return all(each is None or each.dtype == torch.float32 for each in tensors)


def has(name: str) -> bool:
    """Returns True if a function `name` is compiled: some are only for some processors."""
    return hasattr(library().library, name)


def can_read(maps: Tensor) -> bool:
    """Returns True if compiled loops can read `maps` (n, C, H, W): channels_last, C % 16 == 0."""
    return maps.shape[1] % LANES == 0 and maps.device.type == "cpu" and maps.is_contiguous(
        memory_format=torch.channels_last)


def why_not() -> str:
    """Why a step is slower here than it could be; "" where it is not."""
    return library().why_not


@cache
def library() -> Compiled:
    """The compiled loops: built at the first need, later loaded from the user's cache folder."""
    return compiled("\n".join(_source()))


def _source() -> Iterator[str]:
    """The files, and one function for each algorithm's matrices and pair of dtypes."""
    for name in FILES:
        yield (Path(__file__).parent / "cpp" / name).read_text()
    for algorithm in ALGORITHMS.values():
        for tiling in algorithm:
            yield _matrix(tiling.name, tiling.matrix)
            yield _matrix(f"{tiling.name}_transposed", tiling.matrix.T)
            for dtypes in (OF_FILTERS if tiling is algorithm.filters else OF_MAPS):
                yield f"FUNCTIONS({tiling.name}, {tiling.tile}, {tiling.before}, {dtypes})"


def _matrix(name: str, matrix: Tensor) -> str:
    rows = ",\n    ".join("{" + ", ".join(f"{value.hex()}f" for value in row) + "}"
                          for row in matrix.float().tolist())
    return (f"constexpr Matrix<{matrix.shape[0]}, {matrix.shape[1]}> {name}{{{{\n"
            f"    {rows}}}}};")


if __name__ == "__main__":
    print("copy these two into the same folder of the same user there:",
          *made_for_any("\n".join(_source())), sep="\n")
