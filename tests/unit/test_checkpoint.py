"""Checkpoints: whole or absent, verified before use, and never executed."""

import errno
import os
import pickle
import random

import pytest
import torch

from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint_file, checkpoint_folder
from tests.facts import says
from tests.small import small_model


@pytest.fixture
def trained():
    model = small_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for _ in range(2):
        model(torch.ones(2, 3, 8, 8)).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def path(tmp_path, trained):
    target = tmp_path / "Epoch_1.pt"
    contents = checkpoint_file.pack(*trained, Position(2, 0, 7), 0.5, settings={"a": 1})
    checkpoint_file.write(target, contents)
    return target


THEIRS = ("Epoch_\u0663.pt", "Epoch_03.pt", "Epoch_3_Iteration_0.pt", "Epoch_3_Iteration_\u0661.pt",
          "Epoch_3 (copy).pt", "notes.partial", "Epoch_04.pt.partial", "mine.pt.partial")


def test_files_of_the_users_that_are_named_nearly_as_ours_are_left_alone(tmp_path):
    """Ours go by [0-9] without leading zeros; \\d or int() would take more for ours."""
    ours = [tmp_path / name for name in ("Epoch_3.pt", "Epoch_2_Iteration_10.pt", "Epoch_1.pt")]
    partial = [tmp_path / name for name in ("Epoch_5.pt.partial", "best.pt.partial")]
    for path in [*ours, *partial, *(tmp_path / name for name in THEIRS)]:
        path.touch()
    (tmp_path / "Epoch_6.pt.partial").mkdir()
    assert checkpoint_folder.newest(tmp_path) == ours
    checkpoint_folder.prune(ours[1], 1)
    checkpoint_folder.remove_partial_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *THEIRS, "Epoch_3.pt.aside", "Epoch_2_Iteration_10.pt", "Epoch_6.pt.partial"}


def test_what_is_written_is_read(path, trained):
    contents = checkpoint_file.read(path)
    assert (contents["epoch"], contents["loss"], contents["position"]) == (1, 0.5, [2, 0, 7])
    assert contents["settings"] == {"a": 1}
    for name, tensor in trained[0].state_dict().items():
        assert torch.equal(contents["model_state_dict"][name], tensor)


def test_plain_torch_load_reads_it_too(path):
    assert torch.load(path, weights_only=True)["epoch"] == 1


def test_restore_brings_back_weights_and_momentum_but_keeps_the_new_settings(path, trained):
    model, optimizer = trained
    fresh = small_model(torch.float32)
    other = torch.optim.SGD(fresh.parameters(), 0.025, 0.8)
    checkpoint_file.restore(checkpoint_file.read(path), path, fresh, other)
    for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(other.state[mine]["momentum_buffer"],
                           optimizer.state[theirs]["momentum_buffer"])
    assert other.param_groups[0]["lr"] == 0.025 and other.param_groups[0]["momentum"] == 0.8


def test_another_architecture_is_refused_in_a_sentence(path):
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.restore(checkpoint_file.read(path), path, torch.nn.Linear(2, 2))
    assert says(raised.value, path, "Linear")


def test_every_single_bit_flip_is_refused(path):
    data = path.read_bytes()
    generator = random.Random(0)
    for _ in range(200):
        bit = generator.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"Epoch_1\.pt"):
            checkpoint_file.read(path)


def test_every_truncation_is_refused(path):
    data = path.read_bytes()
    for length in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"Epoch_1\.pt"):
            checkpoint_file.read(path)


@pytest.mark.parametrize("other", [-1, 1])
def test_a_missing_file_and_one_of_another_version_are_named(other, path, trained):
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path.with_name("Epoch_9.pt"))
    assert says(raised.value, "Epoch_9.pt", os.strerror(errno.ENOENT))
    contents = checkpoint_file.pack(*trained, Position(), 0.0)
    checkpoint_file.write(path, contents | {"format": checkpoint_file.FORMAT + other})
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path)
    assert says(raised.value, path, checkpoint_file.FORMAT, checkpoint_file.FORMAT + other)


class Hostile:
    """Unpickling this creates a file."""

    def __init__(self, trace) -> None:
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def test_code_in_a_file_is_not_run(path, tmp_path):
    trace = tmp_path / "executed"
    checkpoint_file.write(path, {"format": checkpoint_file.FORMAT,
                                 "model_state_dict": Hostile(trace)})
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path)
    assert says(raised.value, path, "posix.mkdir")
    path.write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.read(path)
    assert says(raised.value, path) and "mkdir" not in str(raised.value)
    assert not trace.exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_keeps_the_old_checkpoint(path, trained, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    before = path.read_bytes()
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.write(path, checkpoint_file.pack(*trained, Position(3, 0, 9), 0.1))
    assert says(raised.value, path, os.strerror(errno.ENOSPC))
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_disk_that_keeps_other_bytes_is_found_out(path, trained, monkeypatch):
    """A written file is read again and compared before it replaces anything."""
    before, fsync = path.read_bytes(), os.fsync

    def spoil(descriptor: int) -> None:
        os.pwrite(descriptor, b"other bytes", 99)
        fsync(descriptor)
    monkeypatch.setattr(os, "fsync", spoil)
    with pytest.raises(CheckpointError) as raised:
        checkpoint_file.write(path, checkpoint_file.pack(*trained, Position(3, 0, 9), 0.1))
    assert says(raised.value, path, f"{path}.partial")
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_names_say_how_far_and_sort_so(tmp_path):
    for position in (Position(2, 0), Position(2, 5), Position(2, 40), Position(3, 0),
                     Position(11, 0)):
        (tmp_path / checkpoint_folder.file_name(position)).touch()
    assert [path.name for path in checkpoint_folder.newest(tmp_path)] == [
        "Epoch_10.pt", "Epoch_2.pt", "Epoch_2_Iteration_40.pt", "Epoch_2_Iteration_5.pt",
        "Epoch_1.pt"]


def test_what_is_not_ours_in_the_folder_is_left_alone(tmp_path):
    ours = ["Epoch_10.pt", "Epoch_2.pt", "Epoch_2_Iteration_7.pt"]
    others = ["Epoch_1_backup.pt", "Epoch_1 (copy).pt", "Epoch_best.pt", "Epoch_3_Iteration_.pt",
              "Epoch_4.pt.aside", "best.pt"]
    for name in [*ours, *others]:
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "Epoch_11.pt")
    (tmp_path / "Epoch_12.pt").symlink_to(tmp_path / "gone")
    (tmp_path / "Epoch_13.pt").mkdir()
    assert [path.name for path in checkpoint_folder.newest(tmp_path)] == ours
    checkpoint_folder.prune(tmp_path / "Epoch_10.pt", kept=1)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"Epoch_10.pt", *others, "Epoch_11.pt", "Epoch_12.pt", "Epoch_13.pt"}
