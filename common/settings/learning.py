"""The settings of the data and of the training itself. The others are in settings.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.settings import types
from common.settings.row import Rows, setting
from common.settings.strategies import LOCAL_SYNC_NAMES
from common.settings.user_code import label

PRECISIONS = ("float32", "bf16", "fp16", "float64")
OPTIMIZERS = ("sgd", "nesterov", "adam", "adadelta", "muon")
USUAL_MODEL, USUAL_IMAGE_SIZE = "vgg11", 32  # of an image folder
DATA = "data and results"
LEARN = "what is learned (defaults depend on --workload and --recipe)"


def local_choices(choices: list[str]) -> list[str]:
    """The strategies that let each rank train alone for a while, with their numbers."""
    return [choice for choice in choices if choice.split(":")[0] in LOCAL_SYNC_NAMES]


def is_local(settings: Mapping[str, Any]) -> bool:
    return bool(local_choices(settings["sync"]))


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Rows):
    workload: str = setting(
        "cifar10-vgg11", "data set and model (default: cifar10-vgg11)", DATA,
        details="; FILE.py:NAME is a Workload of your own", metavar="NAME", learned=True,
        compared=label, common=True)
    data_dir: Path = setting(
        Path("data"), "folder or archive of the data set (default: data)", DATA, parse=Path,
        per_node=True, common=True)
    model: str | None = setting(
        None, "classifier for --workload image-folder: vgg11 (default), small-cnn, or one of "
        "torchvision's, such as resnet18", DATA, metavar="NAME", learned=True,
        compared=lambda name: None if name == USUAL_MODEL else name, banner="model {}")
    image_size: int | None = setting(
        None, "side of the images for --workload image-folder, in pixels (default: 32)", DATA,
        details="; images of other sizes are resized", parse=types.count, learned=True,
        compared=lambda size: None if size == USUAL_IMAGE_SIZE else size,
        banner="images of {0}x{0} pixels")
    skip_unreadable: bool = setting(
        False, "leave out images that cannot be read, for --workload image-folder, and count them",
        DATA, parse=bool)
    output_dir: Path = setting(
        Path("outputs"), "folder of all results (default: outputs)", DATA, parse=Path,
        per_node=True, common=True, repeated=lambda folder: False)
    epochs: int = setting(
        1, "number of passes over the training set", LEARN, parse=types.count, common=True,
        # where the learning rate of every step depends on it
        learned=lambda plain: plain["schedule"].split(":")[0] in types.ENDING_SCHEDULES)
    batch_size: int = setting(
        256, "global batch size, divided among the ranks", LEARN, details="; an epoch's last batch "
        "is dropped where it has fewer than 16 samples, or less than a quarter of a batch below 64",
        parse=types.count, learned=True, common=True)
    learning_rate: float = setting(
        0.1, "peak learning rate", LEARN, parse=types.positive, learned=True, common=True)
    momentum: float = setting(
        0.9, "momentum of SGD and Muon, first beta of Adam, rho of Adadelta", LEARN,
        parse=types.fraction, learned=True)
    weight_decay: float = setting(
        1e-4, "weight decay (L2 penalty)", LEARN, parse=types.not_negative, learned=True)
    recipe: str = setting(
        "course", "named defaults (default: course)", LEARN, banner="recipe {}", common=True)
    max_iterations: int | None = setting(
        None, "stop after N iterations (the course's timing: 40)", LEARN, parse=types.count,
        learned=is_local, common=True)
    optimizer: str = setting(
        "sgd", f"optimizer: {', '.join(OPTIMIZERS)}", LEARN, choices=OPTIMIZERS, learned=True,
        banner="optimizer {}", common=True)
    schedule: types.ScheduleChoice = setting(
        types.ScheduleChoice("constant"), "learning-rate schedule: constant, cosine, linear, "
        "one-cycle, step", LEARN, details=". NAME:W adds W epochs of linear warm-up, which in "
        "one-cycle are its rise; step:EPOCHS:FACTOR:W multiplies by FACTOR (default: 0.1) every "
        "EPOCHS (default: 1) epochs", parse=types.ScheduleChoice.parse, choices=types.SCHEDULES,
        metavar="NAME[:...]", learned=True, banner="learning-rate schedule {}", common=True)
    seed: int = setting(
        1, "random seed of weights, order and augmentation", LEARN, parse=types.whole, learned=True,
        common=True)
    precision: str = setting(
        "float32", "arithmetic: float32 (default), bf16, fp16, float64", LEARN, details="; fp16 "
        "scales the loss, and skips steps whose gradients overflow", choices=PRECISIONS,
        learned=True, common=True)
    batch_norm: str = setting(
        "local", "batch norm: local (default) or synchronised", LEARN, details="; local takes "
        "statistics over each rank's shard, synchronised over the global batch",
        choices=("local", "synchronised"), learned=True, common=True)
    validation: types.Validation = setting(
        types.Validation(), "fraction of the training set held out to validate", LEARN,
        details=" after every epoch; X:N or X:N:GAIN stops early, after N epochs without a "
        "validation loss lower by more than GAIN (default: 0)", parse=types.Validation.parse,
        metavar="X[:...]", learned=True, compared=lambda plain: plain.split(":")[0],
        banner="validation on {0.in_words}", common=True)
    accumulate: int = setting(
        1, "accumulate gradients over K micro-batches in each step, which saves memory (default: "
        "1)", LEARN, parse=types.count, metavar="K", banner="{} micro-batches a step, each with "
        "batch-norm statistics of its own")
    virtual_nodes: int | None = setting(
        None, "split each batch into V shards, added in a fixed order: the same bits on 1 to V "
        "ranks", LEARN, details="; a rank uses 1 thread unless --threads says otherwise; see "
        "docs/virtual_nodes.md", parse=types.count,
        metavar="V", learned=True, banner="{} virtual nodes", common=True)
    decay_on: str = setting(
        "all", "parameters with weight decay: all, or weights without biases and batch norm", LEARN,
        choices=("all", "weights"), learned=True, banner="weight decay on {}")
    label_smoothing: float = setting(
        0.0, "label smoothing of the training loss", LEARN, parse=types.fraction, learned=True,
        banner="label smoothing {}")
    flips: str = setting(
        "random", "horizontal flips: random, or alternating from epoch to epoch", LEARN,
        choices=("random", "alternating"), learned=True, banner="{} flips")
    crop_padding: int = setting(
        4, "padding of the random crop, in pixels", LEARN, parse=types.whole, learned=True,
        banner="crop " "padding {}")
    cutout: int = setting(
        0, "Cutout: mask a random N x N square of each image (default: 0, none)", LEARN,
        parse=types.whole, learned=True, banner="cutout {}")
    init: str = setting(
        "plain", "initial weights: plain (PyTorch's), or whitened: PCA-whitened first layer, "
        "Dirac-initialised others", LEARN, choices=("plain", "whitened"), learned=True,
        banner="{} " "initial weights")
