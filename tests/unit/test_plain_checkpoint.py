"""Files of other programs: the assignment's four keys or weights, with a word on their seal.

Mutations that turn this red: drop is_plain from parse; let _around return ""; _bare without its
replace; drop the optimizer of pytorch/examples, or take Lightning's epoch; leave the CRCs unread;
is_plain true for any end record; is_state_of always True; drop the position of the next epoch; let
--resume auto take a file without seal; drop is_safetensors from read_bytes, or from parse; call
other names another architecture.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

import common
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint_file, checkpoint_plain
from common.run.resuming import _leaders_checkpoint
from common.settings.resume import AUTO, Resume
from tests.facts import says
from tests.small import small_model

FORMS = ("four keys", "pytorch/examples", "torchvision", "state_dict", "safetensors")
WITH_OPTIMIZER = FORMS[:3]


def trained(seed: int = 5) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = small_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    torch.manual_seed(seed)
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(path: Path, form: str, prefix: str = "") -> tuple[nn.Module, torch.optim.Optimizer]:
    """Writes the file as the write-ups do, or other programs, and returns what is in it."""
    model, optimizer = trained()
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    if form == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": weights, "four keys": {
            "epoch": 3, "model_state_dict": weights, "loss": torch.tensor(0.5),
            "optimizer_state_dict": optimizer.state_dict()}, "pytorch/examples": {
                "epoch": 3, "arch": "resnet18", "state_dict": weights, "best_acc1": torch.ones(()),
                "optimizer": optimizer.state_dict(), "scheduler": {"step_size": 30}},
            "torchvision": {"model": weights, "optimizer": optimizer.state_dict(), "epoch": 2},
        }[form], path)
    return model, optimizer


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod."])
@pytest.mark.parametrize("form", FORMS)
def test_the_documented_functions_take_it_with_a_word(form, prefix, tmp_path, capsys):
    path = tmp_path / "their_model.pt"
    model, optimizer = save(path, form, prefix)
    found = common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", path)
    assert same(found, model)
    assert says(capsys.readouterr().out, path, "seal")
    found, _, restored = common.prepare_model_for_training(
        small_model(torch.float32), "cpu", 0.1, 0.9, 0.0, True, path)
    assert same(found, model)
    said = capsys.readouterr().out
    assert says(said, path, "seal") and says(said, "safetensors") == (form == "safetensors")
    assert says(said, "optimizer") == (form not in WITH_OPTIMIZER)
    momenta = [restored.state[parameter].get("momentum_buffer") for parameter in found.parameters()]
    expected = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    assert all(map(torch.equal, momenta, expected)) if form in WITH_OPTIMIZER else (
        momenta == [None] * len(momenta))


def with_compiled_layers(model: nn.Module) -> nn.Module:
    model.layers = torch.compile(model.layers)
    return model


@pytest.mark.parametrize("wrap", [
    nn.DataParallel, torch.compile, lambda model: torch.compile(nn.DataParallel(model)),
    with_compiled_layers], ids=["DataParallel", "compiled", "both", "compiled layers"])
def test_whatever_is_around_the_model_that_was_saved_its_weights_are_read(
        wrap: Callable[[nn.Module], Any], tmp_path):
    """And the other way round: a compiled model reads those of one that was not."""
    torch.save(wrap(trained()[0]).state_dict(), tmp_path / "m.pt")
    found = common.prepare_model_for_evaluation(small_model(torch.float32), "cpu",
                                                tmp_path / "m.pt")
    assert same(found, trained()[0])
    save(tmp_path / "m.pt", "state_dict")
    inner = small_model(torch.float32)
    common.prepare_model_for_evaluation(torch.compile(inner), "cpu", tmp_path / "m.pt")
    assert same(inner, trained()[0])


@patch.dict(os.environ)  # where Lightning sets variables
@pytest.mark.filterwarnings("ignore")  # its own, on what torch deprecates and on few workers
def test_a_checkpoint_that_lightning_wrote_is_read_for_its_weights(tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 3})
            self.net = small_model(torch.float32)

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, 0.9)

    lit, path = Lit(), tmp_path / "last.ckpt"
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                      enable_model_summary=False, default_root_dir=tmp_path)
    trainer.fit(lit, DataLoader(torch.randn(8, 3, 8, 8), 4))
    trainer.save_checkpoint(path)
    assert same(common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", path),
                lit.net)
    said: list[str] = []
    contents = checkpoint_file.read(path, said.append)
    assert "no epoch" not in said[0]  # it has one, that is not used
    with pytest.raises(CheckpointError):
        checkpoint_plain.position_after(contents, path, 9)


def test_what_is_beside_the_weights_is_no_other_architecture(tmp_path):
    weights = {f"net.{name}": tensor for name, tensor in trained()[0].state_dict().items()}
    torch.save({"state_dict": {**weights, "criterion.weight": torch.ones(5)}}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", tmp_path / "m.pt")
    assert says(raised.value, tmp_path / "m.pt", "SmallNet", "net", "state_dict()")


def test_other_names_of_the_same_shapes_are_no_other_architecture(tmp_path):
    torch.save({f"x_{name}": tensor for name, tensor in trained()[0].state_dict().items()},
               tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", tmp_path / "m.pt")
    assert says(raised.value, "SmallNet", "names", "x_layers.0.weight", "layers.0.weight")
    assert "architecture" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("change, facts", [
    ({"layers.0.weight": torch.ones(2, 3)}, ("layers.0.weight", "2x3", "5x3x3x3")),
    ({"layers.0.weight": None}, ("layers.0.weight", "5x3x3x3")),
    ({"head.bias": torch.ones(7)}, ("head.bias", 7))])
def test_another_architecture_is_told_by_its_first_difference(prefix, change, facts, tmp_path):
    weights = {**trained()[0].state_dict(), **change}
    torch.save({prefix + name: tensor for name, tensor in weights.items() if tensor is not None},
               tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", tmp_path / "m.pt")
    assert says(raised.value, tmp_path / "m.pt", "SmallNet", *facts)


def test_a_safetensors_file_that_cannot_be_read_is_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save(path, "safetensors")
    whole = path.read_bytes()
    for length in (len(whole) - 1, 20):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as raised:
            checkpoint_file.read(path)
        assert says(raised.value, path) and "pip install" not in str(raised.value)
    path.write_bytes(whole)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path)
    assert says(raised.value, path, "-m pip install safetensors")


def test_a_sealed_checkpoint_draws_no_word(tmp_path):
    path = tmp_path / "Epoch_1.pt"
    checkpoint_file.write(path, checkpoint_file.pack(*trained(), Position(2), 0.5))
    said: list[str] = []
    checkpoint_file.read(path, said.append)
    assert said == []


def test_a_models_own_child_called_module_keeps_its_name(tmp_path):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = small_model(torch.float32)

    path, model = tmp_path / "m.pt", Holder()
    nn.init.ones_(model.module.layers[-1].bias)
    torch.save(model.state_dict(), path)
    assert same(common.prepare_model_for_evaluation(Holder(), "cpu", path), model)


def test_no_part_of_a_sealed_file_passes_for_a_plain_one(tmp_path):
    path = tmp_path / "Epoch_1.pt"
    checkpoint_file.write(path, checkpoint_file.pack(*trained(), Position(2), 0.5))
    data = path.read_bytes()
    for length in range(len(data) - 120, len(data)):
        with pytest.raises(CheckpointError) as raised:
            checkpoint_file.parse(data[:length], path)
        assert says(raised.value, path)
    for bit in range(8 * (len(data) - 120), 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            checkpoint_file.parse(bytes(flipped), path)


def test_damage_in_a_plain_file_is_found_by_the_zips_checksums(tmp_path):
    path = tmp_path / "m.pt"
    model, _ = save(path, "state_dict")
    data = bytearray(path.read_bytes())
    weights = model.state_dict()["layers.0.weight"].numpy().tobytes()
    data[data.index(weights) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path)
    assert says(raised.value, path, "checksum")


@pytest.mark.parametrize("contents", [{}, [1, 2], {"model_state_dict": {}}, {"weights": "none"},
                                      {"model_state_dict": {"a": 1.0}},
                                      {"net": {"a": torch.ones(1)}, "optim": {}}])
def test_what_holds_no_weights_is_refused_by_what_it_holds(contents, tmp_path):
    torch.save(contents, tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(tmp_path / "m.pt")
    names = map(repr, contents) if isinstance(contents, dict) else ["list"]
    assert says(raised.value, tmp_path / "m.pt", *names)


def test_a_whole_model_is_refused_by_what_it_holds(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(tmp_path / "m.pt")
    assert says(raised.value, tmp_path / "m.pt", "torch.nn.modules.linear.Linear", "state_dict()")


def test_another_optimizers_state_is_refused_by_what_it_is_like(tmp_path):
    model, _ = trained()
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    torch.save({"epoch": 1, "loss": 1.0, "model_state_dict": model.state_dict(),
                "optimizer_state_dict": adam.state_dict()}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError) as raised:
        common.prepare_model_for_training(small_model(torch.float32), "cpu", 0.1, 0.9, 0.0, True,
                                          tmp_path / "m.pt")
    assert says(raised.value, tmp_path / "m.pt", "SGD", "optimizer")


def test_a_run_goes_on_at_the_next_epoch_and_not_from_weights_alone(tmp_path):
    path = tmp_path / "m.pt"
    for form in FORMS[:2]:
        save(path, form)
        contents = checkpoint_file.read(path)
        assert checkpoint_plain.position_after(contents, path, 9) == Position(4, 0, 27)
    for form in ("state_dict", "torchvision"):  # whose epochs begin at 0
        save(path, form)
        contents = checkpoint_file.read(path)
        with pytest.raises(CheckpointError) as raised:
            checkpoint_plain.position_after(contents, path, 9)
        assert says(raised.value, path, "scripts/evaluate.py")


def test_resume_auto_leaves_alone_what_no_run_wrote(tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    checkpoint_file.write(folder / "Epoch_1.pt", checkpoint_file.pack(*trained(), Position(2), 0.5))
    save(folder / "Epoch_9.pt", "four keys")
    assert _leaders_checkpoint(tmp_path, AUTO)[0] == folder / "Epoch_1.pt"
    assert says(capsys.readouterr().out, folder / "Epoch_9.pt", "--resume auto")
    file = Resume.read(str(folder / "Epoch_9.pt"))
    assert _leaders_checkpoint(tmp_path, file)[0] == folder / "Epoch_9.pt"
