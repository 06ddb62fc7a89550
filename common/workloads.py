"""The workload table: data set, model, and the numbers that go with them. A new workload is a row.

    python3 PartOne/main.py --workload digits-vgg11

Rows name their data and models in functions, so that reading the table imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.failures import UsageError


@dataclass(frozen=True)
class Workload:
    """One row. `load(split, data_dir)` gives the ImageDataset, `build_model(classes)` the module.

    `mean` and `std` are per channel in units of 0 to 1; `padding` is in pixels. The rest are the
    defaults of the flags of the same names.
    """

    name: str
    load: Callable[[str, Path], Any]
    build_model: Callable[[int], Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int
    flip: bool
    batch_size: int
    epochs: int
    learning_rate: float
    momentum: float
    weight_decay: float


def _cifar10(split: str, data_dir: Path):
    from common.datasets import load_cifar10

    return load_cifar10(split, data_dir)


def _digits(split: str, data_dir: Path):
    from common.datasets import load_digits

    return load_digits(split)


def _vgg11(classes: int):
    from common.vgg11 import VGG11

    return VGG11(classes)


def _vgg11_for_a_small_rate(classes: int):
    from common.vgg11 import VGG11

    return VGG11(classes, last_scale=1.0)


_ROWS = (
    Workload(
        name="cifar10-vgg11", load=_cifar10, build_model=_vgg11,
        mean=(125.3 / 255, 123.0 / 255, 113.9 / 255), std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
        padding=4, flip=True, batch_size=256, epochs=1,
        learning_rate=0.1, momentum=0.9, weight_decay=1e-4,
    ),
    Workload(  # a six is no mirrored six: no flip
        name="digits-vgg11", load=_digits, build_model=_vgg11_for_a_small_rate,
        mean=(0.305,) * 3, std=(0.376,) * 3,
        padding=1, flip=False, batch_size=64, epochs=3,
        learning_rate=0.01, momentum=0.9, weight_decay=1e-4,
    ),
)
WORKLOADS = {row.name: row for row in _ROWS}


def find_workload(name: str) -> Workload:
    """The row called `name`; an unknown name is a UsageError that lists the known ones."""
    if name not in WORKLOADS:
        raise UsageError(f"no workload is called {name!r}; there are: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
