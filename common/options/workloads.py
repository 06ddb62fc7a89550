"""The workload table: data set, model, and the numbers that go with them. A new workload is a row.

    python3 PartOne/main.py --workload digits-vgg11

Rows name their data and models in functions, so that reading the table imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.core.failures import UsageError
from common.core.settings import Settings

if TYPE_CHECKING:
    from common.data.augment import Augment


@dataclass(frozen=True)
class Workload:
    """One row. `load(split, data_dir)` gives the ImageDataset, `build_model(classes)` the module.

    The data set knows the names of its classes. `mean` and `std` are per channel, in units of 0 to
    1 for images; `padding` is in pixels; `criterion` is a name in optimizers.CRITERIA. The rest are
    the defaults of the flags of the same names.
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
    criterion: str = "cross-entropy"
    optimizer: str = "sgd"
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    step_epochs: int = 1
    gamma: float = 0.1
    decay_on: str = "all"
    label_smoothing: float = 0.0
    flips: str = "random"
    crop_padding: int | None = None
    cutout: int = 0
    init: str = "plain"
    validation_fraction: float = 0.0
    early_stopping: tuple[int, float] | tuple[()] = ()
    log_every: int = 20


def _cifar10(split: str, data_dir: Path):
    from common.data.datasets import load_cifar10

    return load_cifar10(split, data_dir)


def _digits(split: str, data_dir: Path):
    from common.data.datasets import load_digits

    return load_digits(split)


def _mnist(split: str, data_dir: Path):
    from common.data.mnist import load_mnist

    return load_mnist(split, data_dir)


def _spirals(split: str, data_dir: Path):
    from common.data.datasets import load_spirals

    return load_spirals(split)


def _image_folder(split: str, data_dir: Path):
    from common.data.datasets import load_image_folder

    return load_image_folder(split, data_dir)


def _vgg11(classes: int):
    from common.model.vgg11 import VGG11

    return VGG11(classes)


def _vgg11_for_a_small_rate(classes: int):
    from common.model.vgg11 import VGG11

    return VGG11(classes, last_scale=1.0)


def _mnist_mlp(classes: int):
    from common.model.small_models import MnistMlp

    return MnistMlp(classes)


def _mnist_cnn(classes: int):
    from common.model.small_models import MnistCnn

    return MnistCnn(classes)


def _spiral_mlp(classes: int):
    from common.model.small_models import SpiralMlp

    return SpiralMlp(classes)


_CIFAR10_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
_CIFAR10_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)

_ROWS = (
    Workload(
        name="cifar10-vgg11", load=_cifar10, build_model=_vgg11,
        mean=_CIFAR10_MEAN, std=_CIFAR10_STD, padding=4, flip=True, batch_size=256, epochs=1,
        learning_rate=0.1, momentum=0.9, weight_decay=1e-4,
    ),
    Workload(  # a six is no mirrored six: no flip
        name="digits-vgg11", load=_digits, build_model=_vgg11_for_a_small_rate,
        mean=(0.305,) * 3, std=(0.376,) * 3,
        padding=1, flip=False, batch_size=64, epochs=3,
        learning_rate=0.01, momentum=0.9, weight_decay=1e-4,
    ),
    Workload(
        name="mnist-mlp", load=_mnist, build_model=_mnist_mlp, mean=(0.1307,), std=(0.3081,),
        padding=0, flip=False, batch_size=32, epochs=5,
        learning_rate=0.001, momentum=0.9, weight_decay=0.0, optimizer="adam", log_every=100,
    ),
    Workload(
        name="mnist-cnn", load=_mnist, build_model=_mnist_cnn, mean=(0.1307,), std=(0.3081,),
        padding=0, flip=False, batch_size=64, epochs=14,
        learning_rate=1.0, momentum=0.9, weight_decay=0.0, optimizer="adadelta",
        criterion="negative-log-likelihood", schedule="step", gamma=0.7,
    ),
    Workload(  # 128 points a batch: 32 each on four ranks; 15 % of all validate, 15 % test
        name="spiral-mlp", load=_spirals, build_model=_spiral_mlp, mean=(0.0, 0.0), std=(8.4, 8.4),
        padding=0, flip=False, batch_size=128, epochs=50,
        learning_rate=0.001, momentum=0.9, weight_decay=0.0, optimizer="adam",
        validation_fraction=0.15 / 0.85, early_stopping=(3, 0.01),
    ),
    Workload(
        name="image-folder", load=_image_folder, build_model=_vgg11_for_a_small_rate,
        mean=_CIFAR10_MEAN, std=_CIFAR10_STD, padding=4, flip=True, batch_size=64, epochs=10,
        learning_rate=0.01, momentum=0.9, weight_decay=1e-4,
    ),
)
WORKLOADS = {row.name: row for row in _ROWS}


def find_workload(name: str) -> Workload:
    """The row called `name`; an unknown name is a UsageError that lists the known ones."""
    if name not in WORKLOADS:
        raise UsageError(f"no workload is called {name!r}; there are: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def create_augment(settings: Settings) -> "Augment":
    """The workload's augmentation and normalisation, as `settings` change them."""
    from common.core.precision import Precision
    from common.data.augment import Augment

    row = find_workload(settings.workload)
    padding = row.padding if settings.crop_padding is None else settings.crop_padding
    return Augment(row.mean, row.std, padding, row.flip, Precision(settings.precision).dtype,
                   settings.cutout)
