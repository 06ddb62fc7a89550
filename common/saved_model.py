"""A model out of a checkpoint of any part: to evaluate, to classify pictures, to export.

    python3 scripts/evaluate.py outputs/PartOne/checkpoints/Epoch_1.pt
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.cluster.node import Node
from common.core.collectives import broadcast_bytes
from common.core.console import console
from common.core.failures import CheckpointError, DataError, UsageError, first_line
from common.core.metrics import ACCURACY, Metric
from common.core.precision import Precision
from common.core.visible import lookalikes
from common.data.dataset import Dataset, blank_dataset, form_of
from common.data.images import read_pictures
from common.evaluation import Evaluation, evaluate
from common.model.export import export
from common.options.command_line import complete
from common.options.workloads import create_augment, find_workload, workload_of
from common.run import checkpoint_file, checkpoint_folder, checkpoint_plain
from common.run.kept_arithmetic import arithmetic_of, use_arithmetic
from common.settings.learning import DATA, LEARN
from common.settings.settings import Settings
from common.settings.user_code import Place
from common.setup import create_model, hold_out, unseeded
from common.step.optimizers import create_criterion

MOST_NUMBERS = 1 << 28  # in one sample


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint's model on this rank, ready to use; `form` is dataset.form_of(its data).

    `trained_on` is the digest of the data it was trained on, "" where the file does not say.
    """

    path: Path
    settings: Settings
    node: Node
    model: nn.Module
    form: Mapping[str, Any]
    trained_on: str = ""

    @property
    def precision(self) -> Precision:
        return Precision(self.settings.precision)

    @property
    def metric(self) -> Metric:
        return find_workload(self.settings.workload).metric

    def evaluate(self) -> Evaluation:
        """Evaluates on the test set, sharded over ranks. Every rank must call. Raises DataError."""
        dataset = load_test_set(self.settings, self.node)
        if list(dataset.class_names) != list(self.form["classes"]):
            raise DataError(f"the test set in {self.settings.data_dir} has other classes than "
                            f"{self.path}: {', '.join(dataset.class_names)} in place of "
                            f"{', '.join(self.form['classes'])}"
                            + lookalikes(dataset.class_names, self.form["classes"]))
        if self._may_have_trained_on_the_test_set():
            console(self.node.world)(
                f"warning: the images in {self.settings.data_dir} are not those that {self.path} "
                "was trained with, and a fifth of them is held out anew: the model may have been "
                "trained on some of this test set")
        criterion = create_criterion(self.settings, find_workload(self.settings.workload).criterion)
        return evaluate(self, criterion.to(self.node.device), dataset)

    def _may_have_trained_on_the_test_set(self) -> bool:
        """True if a fifth of a folder is held out, and the folder has changed since training."""
        settings = self.settings
        if (settings.workload != "image-folder" or (settings.data_dir / "test").is_dir()
                or not self.trained_on):
            return False
        images = workload_of(settings).dataset("train", settings.data_dir)
        return hold_out(images, settings)[0].digest != self.trained_on

    @torch.no_grad()
    def probabilities(self, pictures: list[Path]) -> Tensor:
        """Class probabilities of each image file, float (n, classes). Needs no other rank."""
        self.require_pictures()
        _, size, channels = self.form["shape"]
        images = torch.from_numpy(read_pictures(pictures, size, channels)).to(self.node.device)
        with self.precision.autocast(images.device):
            outputs = self.model.eval()(create_augment(self.settings).normalise(images))
        return self.precision.widen(outputs).softmax(dim=1)

    def export(self, path: Path) -> None:
        """Writes the model for torch.export.load; see common/model/export.py."""
        self.node.progress.phase = "exporting"
        row = workload_of(self.settings)
        export(self.model, self.form, row.mean, row.std, row.metric is ACCURACY, path)

    def require_pictures(self) -> None:
        """Raises UsageError if a sample is not a square image, or does not have a class."""
        shape = self.form["shape"]
        if (self.form["dtype"] != "uint8" or len(shape) != 3 or shape[0] != shape[1]
                or shape[2] not in (1, 3) or self.metric is not ACCURACY):
            raise UsageError(f"{self.path} is of {self.settings.workload}, whose model takes no "
                             "pictures: leave the image files out")


def load_saved_model(path: Path, flags: Mapping[str, Any], node: Node) -> SavedModel:
    """The model in the leader's file `path`. Every rank must call.

    Settings come from `flags`, else from the checkpoint, else from the workload. What a sample is
    like comes from the checkpoint; where that does not know it, from the test set. Raises
    CheckpointError, DataError and UsageError.
    """
    contents = _leaders_checkpoint(path, node)
    if not ("settings" in contents or "workload" in flags):
        raise UsageError(f"{path} does not say which data and model it is of: give --workload")
    saved = _settings_in(contents, path)
    _require_consent(saved, flags, path)
    settings = complete(flags, saved=saved)
    form = contents.get("samples") or form_of(load_test_set(settings, node))
    _require_form(form, path)
    use_arithmetic(settings, node, arithmetic_of(contents.get("ran_on")))
    model = create_model(settings, blank_dataset(form), node,
                         _convolutions_in(contents) or settings.convolutions)
    checkpoint_file.restore(contents, path, model)
    trained_on = contents.get("data")
    return SavedModel(path, settings, node, model, form,
                      trained_on if isinstance(trained_on, str) else "")


def load_test_set(settings: Settings, node: Node) -> Dataset:
    """The workload's test set. Every rank must call: all must hold equal data. Raises DataError."""
    node.progress.phase = "loading data"
    dataset = workload_of(settings).dataset("test", settings.data_dir)
    node.agree("test set", dataset.digest, unseeded(settings))
    return dataset


def _leaders_checkpoint(path: Path, node: Node) -> dict[str, Any]:
    data = _read(path) if node.world.is_leader else b""
    contents = checkpoint_file.parse(broadcast_bytes(data, node.device), path)
    if node.world.is_leader:
        for remark in checkpoint_plain.remarks_on(contents, path):
            console(node.world)(remark)
    return contents


def _read(path: Path) -> bytes:
    """The file's contents. Raises CheckpointError, which names the checkpoint of a run's folder."""
    try:
        return checkpoint_file.read_bytes(path)
    except CheckpointError as error:
        for folder in (path / "checkpoints", path, path.parent):
            if other := next(iter(checkpoint_folder.newest(folder)), None):
                raise CheckpointError(f"{error}; there is {other}") from error
        raise


def _settings_in(contents: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The data and learning settings of the checkpoint's run; initial weights do not matter."""
    recorded = contents.get("settings", {})
    try:
        settings = Settings.from_json(recorded, (DATA, LEARN))
        # parsed again from text: a number may be outside the range of its setting
        settings.update({name: Settings.rows()[name].parse(str(recorded[name])) for name in settings
                         if type(recorded[name]) in (int, float)})
    except (ArgumentTypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} has settings that cannot be: {first_line(error)}") from error
    return {**settings, "init": "plain"}


def _require_consent(saved: Mapping[str, Any], flags: Mapping[str, Any], path: Path) -> None:
    """Raises UsageError where the file, not the command line, names Python code to run."""
    name = str(saved.get("workload", ""))
    if "workload" not in flags and Place.parse(name):
        raise UsageError(f"{path} is of the workload {name}, whose code would run here: read it, "
                         f"and give --workload {name}")


def _require_form(form: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError if `form` is not one that `form_of` returns."""
    shape, dtype, names = (form.get(name) for name in ("shape", "dtype", "classes"))
    if not (isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
            and prod(shape) <= MOST_NUMBERS and isinstance(getattr(torch, str(dtype), None),
                                                           torch.dtype)
            and isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(f"{path} tells of samples that cannot be")


def _convolutions_in(contents: Mapping[str, Any]) -> str:
    """The algorithm of the convolutions in the checkpoint's run, so that this run rounds alike."""
    ran_on = contents.get("ran_on")
    name = ran_on.get("convolutions") if isinstance(ran_on, dict) else ""
    return name if isinstance(name, str) else ""
