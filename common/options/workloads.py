"""Workloads, which are a data set, a model and defaults; and recipes, which are other defaults.

Each is a row. A recipe overrides the workload's defaults, and any flag overrides the recipe. Rows
name their data and models so that reading the tables imports no torch. A user's own row is in a
file of the user's.

    python3 PartOne/main.py --workload digits-vgg11 --recipe record --precision bf16
    python3 PartOne/main.py --workload my_task.py:TASK
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.core.failures import DataError, UsageError
from common.core.metrics import ACCURACY, Metric
from common.settings.learning import USUAL_IMAGE_SIZE, USUAL_MODEL
from common.settings.settings import Settings
from common.settings.types import ScheduleChoice, Validation
from common.settings.user_code import (
    Place,
    UserCodeError,
    defined_at,
    require_call,
    why_not_called,
)

if TYPE_CHECKING:
    from common.data.augment import Preparation
    from common.data.dataset import Dataset


@dataclass(frozen=True)
class Workload:
    """One row. `load(split, data_dir)`, of "train" and "test", gives what as_dataset takes.

    `build_model(classes)` gives the module for so many classes; without arguments where the data
    set names none. `mean` and `std` are per channel, in units of 0 to 1, of images uint8 (n,
    height, width, channels), which are then augmented; those without a `flip` are never mirrored.
    Without `mean` the model gets the samples as they are. `criterion` is a name in
    optimizers.CRITERIA, or a module that gives the mean over a batch's samples. `defaults` are
    those of settings, by name: values, or texts as on the command line. What the model `has`
    decides which flags it can be trained with. Where `takes_any_model`, --model and --image-size
    choose: `load` also takes `size=` and `skip_unreadable=`, and `build_model` `name=` and `size=`.
    """

    name: str
    load: Callable[[str, Path], Any]
    build_model: Callable[..., Any]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    flip: bool = False
    criterion: Any = "cross-entropy"
    metric: Metric = ACCURACY
    has_convolutions: bool = True
    has_batch_norm: bool = True
    takes_any_model: bool = False

    def __post_init__(self) -> None:
        """Makes a criterion of its class, and a Metric of a function. Raises UsageError."""
        if isinstance(self.criterion, type):
            require_call(self.criterion, "the criterion, without arguments")
            object.__setattr__(self, "criterion", self.criterion())
        if callable(self.metric):
            name = getattr(self.metric, "__name__", "metric").strip("<>_").replace("_", " ")
            object.__setattr__(self, "metric", Metric(name, self.metric))
        for name, is_right, wanted in self._wanted():
            if not is_right:
                raise UsageError(f"Workload's {name} must be {wanted}, and is a "
                                 f"{type(getattr(self, name)).__name__}")

    def _wanted(self) -> Iterator[tuple[str, bool, str]]:
        """Each field that a file may have wrong: its name, whether it is right, and its kind."""
        new = isinstance(self.build_model, type) or not hasattr(self.build_model, "state_dict")
        yield "load", callable(self.load), "a function load(split, data_dir)"
        yield ("build_model", callable(self.build_model) and new,
               "a class or function that makes a new module for each run")
        yield ("criterion", callable(self.criterion) or isinstance(self.criterion, str),
               "a module or a function")
        yield ("metric", isinstance(self.metric, Metric) and isinstance(self.metric.name, str)
               and callable(self.metric.of_samples), "Metric(name, function)")
        yield ("mean", isinstance(self.mean, Sequence) and isinstance(self.std, Sequence)
               and len(self.mean) == len(self.std), "a number for each channel, as std")
        yield "defaults", isinstance(self.defaults, Mapping), "a dictionary of settings by name"

    def dataset(self, split: str, data_dir: Path) -> "Dataset":
        """The data set of `split`; raises DataError, or UsageError where a user's load is wrong.

        What it draws from torch, numpy.random and random is the same in every process.
        """
        from common.core.random_numbers import seed_all  # imports torch
        from common.data.dataset import as_dataset, require_labels

        require_call(self.load, "load(split, data_dir)", split, data_dir)
        if list(signature(self.load).parameters)[1:2] == ["split"]:
            raise UsageError(f"{defined_at(self.load)}load is called as load(split, data_dir), and "
                             "this one's second parameter is split: change their order")
        seed_all(int(split != "train"))
        place, name = defined_at(self.load), "training" if split == "train" else split
        try:
            dataset = as_dataset(self.load(split, data_dir), name)
            if self.metric is ACCURACY:
                require_labels(dataset, name)
        except UserCodeError:
            raise
        except (DataError, UsageError) as error:
            call = f'load("{split}", ...): ' if place else ""
            raise (UsageError if place else DataError)(f"{place}{call}{error}") from error
        return dataset

    def build(self, class_names: Sequence[str]) -> Any:
        """A new model, of random weights, for a data set with these classes."""
        count = (len(class_names),) if class_names else ()
        if why_not_called(self.build_model, *count) and not why_not_called(self.build_model):
            count = ()  # one whose number of classes is fixed
        role = ("build_model(classes)" if class_names else
                "build_model(), because the data set names no classes")
        require_call(self.build_model, role, *count)
        model = self.build_model(*count)
        if not hasattr(model, "state_dict"):
            raise UsageError(f"{defined_at(self.build_model)}build_model returned a "
                             f"{type(model).__name__}: it must return a torch.nn.Module")
        return model


def _lazy(place: str, **more: Any) -> Callable[..., Any]:
    """A function that imports `place`, "module:callable", only when it is called."""
    return partial(_import_and_call, place, **more)


def _import_and_call(place: str, *arguments: Any, **more: Any) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)(*arguments, **more)


_LOAD_MNIST = _lazy("common.data.mnist:load_mnist")
_LOAD_FOLDER = _lazy("common.data.image_folders:load_image_folder")
_VGG11_FOR_A_SMALL_RATE = _lazy("common.model.vgg11:VGG11", last_scale=1.0)
_CIFAR10_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
_CIFAR10_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)

_ROWS = (
    Workload(
        "cifar10-vgg11", _lazy("common.data.datasets:load_cifar10"),
        _lazy("common.model.vgg11:VGG11"), _CIFAR10_MEAN, _CIFAR10_STD, flip=True,
    ),
    Workload(  # a mirrored six is not a six: no flip
        "digits-vgg11", _lazy("common.data.datasets:load_digits"), _VGG11_FOR_A_SMALL_RATE,
        (0.305,) * 3, (0.376,) * 3,
        {"batch_size": 64, "epochs": 3, "learning_rate": 0.01, "crop_padding": 1},
    ),
    Workload(
        "mnist-mlp", _LOAD_MNIST, _lazy("common.model.small_models:MnistMlp"), (0.1307,), (0.3081,),
        {"batch_size": 32, "epochs": 5, "learning_rate": 0.001, "weight_decay": 0.0,
         "optimizer": "adam", "crop_padding": 0, "log_every": 100},
        has_convolutions=False, has_batch_norm=False,
    ),
    Workload(
        "mnist-cnn", _LOAD_MNIST, _lazy("common.model.small_models:MnistCnn"), (0.1307,), (0.3081,),
        {"batch_size": 64, "epochs": 14, "learning_rate": 1.0, "weight_decay": 0.0,
         "optimizer": "adadelta", "schedule": ScheduleChoice("step", epochs=1, factor=0.7),
         "crop_padding": 0},
        criterion="negative-log-likelihood", has_batch_norm=False,
    ),
    Workload(  # 128 points a batch: 32 each on four ranks; 15 % of all validate, 15 % test
        "spiral-mlp", _lazy("common.data.datasets:load_spirals"),
        _lazy("common.model.small_models:SpiralMlp"), (0.0, 0.0), (8.4, 8.4),
        {"batch_size": 128, "epochs": 50, "learning_rate": 0.001, "weight_decay": 0.0,
         "optimizer": "adam", "validation": Validation(0.15 / 0.85, patience=3, gain=0.01),
         "crop_padding": 0},
        has_convolutions=False, has_batch_norm=False,
    ),
    Workload(
        "image-folder", _LOAD_FOLDER, _lazy("common.model.classifiers:create_classifier"),
        _CIFAR10_MEAN, _CIFAR10_STD, {"batch_size": 64, "epochs": 10, "learning_rate": 0.01},
        flip=True, takes_any_model=True,
    ),
)
WORKLOADS = {row.name: row for row in _ROWS}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    # The assignment's numbers, or those of the workload.
    "course": {},
    # For VGG-11 on CIFAR-10, in few epochs; what has been tried is in docs/recipe.md.
    "record": {
        "epochs": 9, "batch_size": 512, "learning_rate": 0.12, "optimizer": "muon",
        "schedule": ScheduleChoice("linear"), "momentum": 0.8, "weight_decay": 5e-4,
        "decay_on": "weights", "label_smoothing": 0.1, "flips": "alternating", "crop_padding": 2,
        "init": "whitened",
    },
}
TABLES: Mapping[str, Mapping[str, Any]] = {"workload": WORKLOADS, "recipe": RECIPES}


def find_workload(name: str) -> Workload:
    """The row called `name`, or at that place in a user's file.

    An unknown name is a UsageError that lists the known ones.
    """
    place = Place.parse(name)
    if place is None:
        return find_row("workload", name)
    value = place.load()
    if not isinstance(value, Workload):
        raise UsageError(f"--workload {name} is no Workload but {type(value).__name__}: make one "
                         "with common.options.workloads.Workload")
    return value


def workload_of(settings: Settings) -> Workload:
    """The workload that `settings` name; for a folder of images, with their model and image size.

    Raises UsageError for an unknown model, if it does not take images of that size, or if the
    workload has its own model and size.
    """
    row: Any = find_workload(settings.workload)
    name, size, skip = settings.model, settings.image_size, settings.skip_unreadable
    if name is None and size is None and not skip:
        return row
    if not row.takes_any_model:
        flag = (f"--model {name}" if name else f"--image-size {size}" if size
                else "--skip-unreadable")
        raise UsageError(f"{flag} is for folders of images, and --workload {row.name} has a model, "
                         "a size and data of its own: use --workload image-folder, or leave it out")
    from common.model.classifiers import has_batch_norm  # imports torch

    name, size = name or USUAL_MODEL, size or USUAL_IMAGE_SIZE
    return replace(row, load=partial(row.load, size=size, skip_unreadable=skip),
                   build_model=partial(row.build_model, name=name, size=size),
                   has_batch_norm=has_batch_norm(name, size))


def find_row(kind: str, name: str) -> Any:
    """The Workload, or the recipe's defaults by setting; `kind` is a key of TABLES."""
    if name not in TABLES[kind]:
        raise UsageError(f"no {kind} is called {name!r}; there are: {', '.join(TABLES[kind])}")
    return TABLES[kind][name]


def create_augment(settings: Settings) -> "Preparation":
    """The workload's augmentation and normalisation, as `settings` change them."""
    from common.data.augment import Augment, Preparation

    row = find_workload(settings.workload)
    return Augment(settings, row.mean, row.std, row.flip) if row.mean else Preparation(settings)
