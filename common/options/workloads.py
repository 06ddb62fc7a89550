"""The workload table: data set, model, and the defaults that go with them. A workload is a row.

    python3 PartOne/main.py --workload digits-vgg11

Rows name their data and models in functions, so that reading the table imports no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.core.failures import UsageError
from common.core.setting_types import ScheduleChoice, Validation
from common.core.settings import Settings

if TYPE_CHECKING:
    from common.data.augment import Augment


@dataclass(frozen=True)
class Workload:
    """One row. `load(split, data_dir)` gives the ImageDataset, `build_model(classes)` the module.

    The data set knows the names of its classes. `mean` and `std` are per channel, in units of 0 to
    1 for images; images without a `flip` are never mirrored. `criterion` is a name in
    optimizers.CRITERIA. `defaults` are those of settings, by name.
    """

    name: str
    load: Callable[[str, Path], Any]
    build_model: Callable[[int], Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    flip: bool = False
    criterion: str = "cross-entropy"
    has_convolutions: bool = True
    has_batch_norm: bool = True


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
        "cifar10-vgg11", _cifar10, _vgg11, _CIFAR10_MEAN, _CIFAR10_STD, flip=True,
    ),
    Workload(  # a six is no mirrored six: no flip
        "digits-vgg11", _digits, _vgg11_for_a_small_rate, (0.305,) * 3, (0.376,) * 3,
        {"batch_size": 64, "epochs": 3, "learning_rate": 0.01, "crop_padding": 1},
    ),
    Workload(
        "mnist-mlp", _mnist, _mnist_mlp, (0.1307,), (0.3081,),
        {"batch_size": 32, "epochs": 5, "learning_rate": 0.001, "weight_decay": 0.0,
         "optimizer": "adam", "crop_padding": 0, "log_every": 100},
        has_convolutions=False, has_batch_norm=False,
    ),
    Workload(
        "mnist-cnn", _mnist, _mnist_cnn, (0.1307,), (0.3081,),
        {"batch_size": 64, "epochs": 14, "learning_rate": 1.0, "weight_decay": 0.0,
         "optimizer": "adadelta", "schedule": ScheduleChoice("step", epochs=1, factor=0.7),
         "crop_padding": 0},
        criterion="negative-log-likelihood", has_batch_norm=False,
    ),
    Workload(  # 128 points a batch: 32 each on four ranks; 15 % of all validate, 15 % test
        "spiral-mlp", _spirals, _spiral_mlp, (0.0, 0.0), (8.4, 8.4),
        {"batch_size": 128, "epochs": 50, "learning_rate": 0.001, "weight_decay": 0.0,
         "optimizer": "adam", "validation": Validation(0.15 / 0.85, patience=3, gain=0.01),
         "crop_padding": 0},
        has_convolutions=False, has_batch_norm=False,
    ),
    Workload(
        "image-folder", _image_folder, _vgg11_for_a_small_rate, _CIFAR10_MEAN, _CIFAR10_STD,
        {"batch_size": 64, "epochs": 10, "learning_rate": 0.01}, flip=True,
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
    from common.data.augment import Augment

    row = find_workload(settings.workload)
    return Augment(settings, row.mean, row.std, row.flip)
