"""A checkpoint's model is rebuilt from what the file says, else from flags and the test set.

Mutations that turn this red: settings of the command line before the checkpoint's; the workload's
test set where the checkpoint knows its samples; no look at the classes; drop _require_form, or
_require_consent; take a checkpoint's numbers as they are.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from common.cluster.node import Node
from common.core.failures import CheckpointError, DataError, UsageError
from common.core.progress import Position
from common.core.world import World
from common.data.dataset import form_of
from common.options import workloads
from common.run import checkpoint_file
from common.saved_model import load_saved_model
from common.settings.settings import Settings
from tests.facts import says
from tests.small import SmallNet, small_dataset

NODE = Node(World(), torch.device("cpu"), threads=1)


@pytest.fixture
def small(monkeypatch) -> workloads.Workload:
    row = workloads.Workload(
        "small", lambda split, _: small_dataset(31), lambda classes: SmallNet(nn.BatchNorm2d),
        (0.5,) * 3, (0.25,) * 3, {"crop_padding": 1})
    monkeypatch.setitem(workloads.WORKLOADS, "small", row)
    return row


def no_data(split: str, data_dir: Path):
    raise DataError("there is no data")


def trained() -> SmallNet:
    torch.manual_seed(4)
    model = SmallNet(nn.BatchNorm2d)
    model(torch.randn(20, 3, 8, 8))  # the running statistics move
    return model


def save(path: Path, model: nn.Module, **more) -> Path:
    settings = Settings(workload="small", precision="float64", seed=7)
    checkpoint_file.write(path, checkpoint_file.pack(
        model, torch.optim.SGD(model.parameters(), 0.1), Position(2), 0.5, **{
            "settings": settings.as_json(), "samples": form_of(small_dataset()), **more}))
    return path


def test_the_checkpoints_own_settings_hold_unless_flags_say_otherwise(small, tmp_path):
    path = save(tmp_path / "Epoch_1.pt", trained())
    saved = load_saved_model(path, {}, NODE)
    assert (saved.settings.workload, saved.settings.seed) == ("small", 7)
    assert next(saved.model.parameters()).dtype == torch.float64
    saved = load_saved_model(path, {"precision": "float32"}, NODE)
    assert next(saved.model.parameters()).dtype == torch.float32


def test_all_unreadable_pictures_are_listed(small, tmp_path):
    saved = load_saved_model(save(tmp_path / "Epoch_1.pt", trained()), {}, NODE)
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_text("no image")
    with pytest.raises(DataError, match="2 files cannot be read: .*0.png .*1.png") as caught:
        saved.probabilities([tmp_path / name for name in ("0.png", "1.png")])
    assert "--skip-unreadable" not in str(caught.value)  # evaluate.py does not have it


@pytest.mark.parametrize("name", ["", "checkpoints", "checkpoints/Epoch_3.pt"])
def test_where_no_checkpoint_is_the_newest_beside_is_named(name, tmp_path):
    for epoch in (1, 2):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / f"checkpoints/Epoch_{epoch}.pt").touch()
    with pytest.raises(CheckpointError, match="there is .*/checkpoints/Epoch_2.pt$"):
        load_saved_model(tmp_path / name, {}, NODE)


def test_pictures_need_no_data_set(small, tmp_path, monkeypatch):
    model = trained()
    path = save(tmp_path / "Epoch_1.pt", model)
    dataset, pictures = small_dataset(6), []
    for number, image in enumerate(dataset.inputs):
        pictures.append(tmp_path / f"{number}.png")
        Image.fromarray(image).save(pictures[-1])
    monkeypatch.setitem(workloads.WORKLOADS, "small", replace(small, load=no_data))
    found = load_saved_model(path, {"precision": "float32"}, NODE).probabilities(pictures)
    images = (torch.from_numpy(dataset.inputs).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        expected = model.eval()(images).softmax(1)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_bare_state_dict_is_evaluated_by_the_workload_that_flags_name(prefix, small, tmp_path,
                                                                        capsys):
    model = trained()
    torch.save({prefix + name: tensor for name, tensor in model.state_dict().items()},
               tmp_path / "m.pt")
    with pytest.raises(UsageError) as refused:
        load_saved_model(tmp_path / "m.pt", {}, NODE)
    assert says(refused.value, tmp_path / "m.pt", "--workload")
    result = load_saved_model(tmp_path / "m.pt", {"workload": "small"}, NODE).evaluate()
    dataset = small_dataset(31)
    images = (torch.from_numpy(dataset.inputs).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        expected = model.eval()(images).argmax(1)
    assert result.predictions.tolist() == expected.tolist()
    assert says(capsys.readouterr().out, tmp_path / "m.pt", "seal")


@pytest.mark.parametrize("name, facts", [("d", ["a, b, c", "a, b, d"]),
                                         ("c ", ["look alike", "'c'", "'c '"])])
def test_a_test_set_of_other_classes_is_refused(name, facts, small, tmp_path):
    form = {**form_of(small_dataset()), "classes": ["a", "b", name]}
    saved = load_saved_model(save(tmp_path / "Epoch_1.pt", trained(), samples=form), {}, NODE)
    with pytest.raises(DataError) as refused:
        saved.evaluate()
    assert says(refused.value, tmp_path / "Epoch_1.pt", *facts)


def test_what_cannot_be_is_named(small, tmp_path):
    path = save(tmp_path / "Epoch_1.pt", trained(), settings={"workload": "small", "seed": "x"})
    with pytest.raises(CheckpointError) as refused:
        load_saved_model(path, {}, NODE)
    assert says(refused.value, path, "settings", "'x'")
    form = {**form_of(small_dataset()), "dtype": "float32"}
    saved = load_saved_model(save(path, trained(), samples=form), {}, NODE)
    with pytest.raises(UsageError) as refused:
        saved.probabilities([tmp_path / "x.png"])
    assert says(refused.value, path, "small")


@pytest.mark.parametrize("change", [
    {"shape": [1 << 40]}, {"shape": [-1]}, {"shape": 3}, {"dtype": "object"}, {"dtype": None},
    {"classes": [1, 2, 3]}, {"classes": None}])
def test_samples_that_cannot_be_are_refused(change, small, tmp_path):
    form = {**form_of(small_dataset()), **change}
    path = save(tmp_path / "Epoch_1.pt", trained(), samples=form)
    with pytest.raises(CheckpointError) as refused:
        load_saved_model(path, {}, NODE)
    assert says(refused.value, path, "samples")


@pytest.mark.parametrize("change", [
    {"batch_size": -1}, {"learning_rate": float("nan")}, {"epochs": 1e9}, {"seed": 10 ** 400}],
    ids=str)
def test_settings_that_cannot_be_are_refused(change, small, tmp_path):
    told = {**Settings(workload="small", precision="float64").as_json(), **change}
    path = save(tmp_path / "Epoch_1.pt", trained(), settings=told)
    with pytest.raises(CheckpointError) as refused:
        load_saved_model(path, {}, NODE)
    assert says(refused.value, path, "settings")


def test_a_checkpoint_names_no_code_to_run(small, tmp_path):
    """Where it lies in a folder with a Python file of whoever made both."""
    (tmp_path / "task.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nTASK = 1\n")
    task = f"{tmp_path}/task.py:TASK"
    told = {**Settings(workload="small", precision="float64").as_json(), "workload": task}
    path = save(tmp_path / "Epoch_1.pt", trained(), settings=told)
    with pytest.raises(UsageError) as refused:
        load_saved_model(path, {}, NODE)
    assert says(refused.value, path, f"--workload {task}")
    assert not (tmp_path / "ran").exists()
    load_saved_model(path, {"workload": "small"}, NODE)
