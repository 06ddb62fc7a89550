"""Files of plain torch.save: the assignment's four keys or weights, with a word on their seal.

Mutations that turn this red: drop is_plain from parse; from_plain without "module."; leave the CRCs
unread; is_plain true for any end record; is_state_of always True; drop the position of the next
epoch; let --resume auto take a file without seal.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

import common
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint, plain_checkpoint
from common.run.resume import _leaders_checkpoint
from tests.small import small_model

FORMS = ("four keys", "state_dict")


def trained(seed: int = 5) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = small_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    torch.manual_seed(seed)
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(path: Path, form: str, prefix: str = "") -> tuple[nn.Module, torch.optim.Optimizer]:
    """Writes the file as the write-ups do, and returns what is in it."""
    model, optimizer = trained()
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save(weights if form == "state_dict" else {
        "epoch": 3, "model_state_dict": weights, "loss": torch.tensor(0.5),
        "optimizer_state_dict": optimizer.state_dict()}, path)
    return model, optimizer


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("form", FORMS)
def test_the_documented_functions_take_it_with_a_word(form, prefix, tmp_path, capsys):
    path = tmp_path / "their_model.pt"
    model, optimizer = save(path, form, prefix)
    found = common.prepare_model_for_evaluation(small_model(torch.float32), "cpu", path)
    assert same(found, model)
    assert f"{path} carries no seal" in capsys.readouterr().out
    found, _, restored = common.prepare_model_for_training(
        small_model(torch.float32), "cpu", 0.1, 0.9, 0.0, True, path)
    assert same(found, model)
    said = capsys.readouterr().out
    assert "carries no seal" in said and ("no optimizer state" in said) == (form == "state_dict")
    momenta = [restored.state[parameter].get("momentum_buffer") for parameter in found.parameters()]
    expected = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    assert momenta == [None] * len(momenta) if form == "state_dict" else all(
        map(torch.equal, momenta, expected))


def test_a_sealed_checkpoint_draws_no_word(tmp_path):
    path = tmp_path / "Epoch_1.pt"
    checkpoint.write(path, checkpoint.pack(*trained(), Position(2), 0.5))
    said: list[str] = []
    checkpoint.read(path, said.append)
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
    checkpoint.write(path, checkpoint.pack(*trained(), Position(2), 0.5))
    data = path.read_bytes()
    for length in range(len(data) - 120, len(data)):
        with pytest.raises(CheckpointError, match="cut short"):
            checkpoint.parse(data[:length], path)
    for bit in range(8 * (len(data) - 120), 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            checkpoint.parse(bytes(flipped), path)


def test_damage_in_a_plain_file_is_found_by_the_zips_checksums(tmp_path):
    path = tmp_path / "m.pt"
    model, _ = save(path, "state_dict")
    data = bytearray(path.read_bytes())
    weights = model.state_dict()["layers.0.weight"].numpy().tobytes()
    data[data.index(weights) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"m\.pt is damaged: the checksum of .* not match"):
        checkpoint.read(path)


@pytest.mark.parametrize("contents", [{}, [1, 2], {"model_state_dict": {}}, {"weights": "none"},
                                      {"model_state_dict": {"a": 1.0}}])
def test_what_holds_no_weights_is_refused(contents, tmp_path):
    torch.save(contents, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"m\.pt is not a checkpoint"):
        checkpoint.read(tmp_path / "m.pt")


def test_a_whole_model_is_refused_by_what_it_holds(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"it holds torch\.nn\..*Linear.*save the state_dict"):
        checkpoint.read(tmp_path / "m.pt")


def test_another_optimizers_state_is_refused_by_what_it_is_like(tmp_path):
    model, _ = trained()
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    torch.save({"epoch": 1, "loss": 1.0, "model_state_dict": model.state_dict(),
                "optimizer_state_dict": adam.state_dict()}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="another optimizer, and this run's optimizer is SGD"):
        common.prepare_model_for_training(small_model(torch.float32), "cpu", 0.1, 0.9, 0.0, True,
                                          tmp_path / "m.pt")


def test_a_run_goes_on_at_the_next_epoch_and_not_from_weights_alone(tmp_path):
    path = tmp_path / "m.pt"
    save(path, "four keys")
    assert plain_checkpoint.position_after(checkpoint.read(path), path, 9) == Position(4, 0, 27)
    save(path, "state_dict")
    with pytest.raises(CheckpointError, match="holds weights alone.*scripts/evaluate.py"):
        plain_checkpoint.position_after(checkpoint.read(path), path, 9)


def test_resume_auto_leaves_alone_what_no_run_wrote(tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    checkpoint.write(folder / "Epoch_1.pt", checkpoint.pack(*trained(), Position(2), 0.5))
    save(folder / "Epoch_9.pt", "four keys")
    assert _leaders_checkpoint(tmp_path, "auto")[0] == folder / "Epoch_1.pt"
    assert "warning" in capsys.readouterr().out
    assert _leaders_checkpoint(tmp_path, str(folder / "Epoch_9.pt"))[0] == folder / "Epoch_9.pt"
