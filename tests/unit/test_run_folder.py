"""The folder of a run is looked at before the run begins.

Mutations that turn this red: drop `_refuse_dangling_link`; look at the folder alone, and not at its
parents; make no folder of checkpoints; let what is held not count as room, or all that is there;
let the space for the first to be written come from it too; drop `_require_files`.
"""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.cluster.node import Node
from common.core.failures import CheckpointError, UsageError
from common.core.world import World
from common.run.folder_lock import FolderLock
from common.run.run_folder import hold_folder, prepare_folder
from common.settings.resume import Resume
from common.settings.settings import Settings
from common.settings.types import Validation
from tests.facts import says
from tests.small import small_model

NODE = Node(World(), torch.device("cpu"), threads=1)


@pytest.mark.parametrize("link", ["outputs", "outputs/PartOne", "outputs/PartOne/checkpoints"])
def test_a_link_to_nowhere_is_refused_before_anything_is_written(link, tmp_path):
    """Say, a lost disk: a run would train on without saving, or begin anew over its old logs."""
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "lost disk")
    folder = tmp_path / "outputs" / "PartOne"
    with pytest.raises(UsageError) as refused:
        hold_folder(folder, FolderLock(folder, 0, ""), NODE, "code")
    assert says(refused.value, tmp_path / link, tmp_path / "lost disk")
    assert not (tmp_path / "lost disk").exists()


def test_a_link_to_another_folder_serves(tmp_path):
    (tmp_path / "big disk").mkdir()
    folder = tmp_path / "PartOne"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(tmp_path / "big disk")
    prepare_folder(folder, Settings(), NODE, small_model())
    assert (folder / "checkpoints").is_symlink()


@pytest.mark.parametrize("free, resume, fits", [
    (3, "no", False), (4, "no", True), (0, "auto", False), (1, "auto", True),
    (1, "{}/Epoch_1.pt", False), (2, "{}/Epoch_1.pt", True),  # the others are put aside
    (1, "auto:elsewhere.pt", True), (3, "elsewhere.pt", False)])
def test_what_a_resumed_run_holds_counts_as_room(free, resume, fits, tmp_path, monkeypatch):
    """With a validation set four checkpoints stand there while one is written."""
    model, checkpoints = small_model(), tmp_path / "checkpoints"
    size = 2 * sum(each.nbytes for each in model.parameters()) + 100_000
    size += sum(each.nbytes for each in model.buffers())
    checkpoints.mkdir()
    for name in ("Epoch_1.pt", "Epoch_2.pt", "Epoch_3.pt", "best.pt"):
        (checkpoints / name).write_bytes(bytes(size + 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * size))
    settings = Settings(resume=Resume.read(resume.format(checkpoints)), validation=Validation(0.1))
    with nullcontext() if fits else pytest.raises(CheckpointError, match=r"\d MB"):
        prepare_folder(tmp_path, settings, NODE, model)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["logs_rank0.txt", "metrics_rank0.jsonl", "settings.json"])
def test_what_is_no_file_in_the_place_of_one_is_named(name, put, tmp_path):
    put(tmp_path / name)
    with pytest.raises(UsageError) as refused:
        prepare_folder(tmp_path, Settings(), NODE, small_model())
    assert says(refused.value, tmp_path / name, "--output-dir")


def test_a_file_in_the_place_of_the_checkpoints_is_named(tmp_path: Path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(UsageError) as refused:
        prepare_folder(tmp_path, Settings(), NODE, small_model())
    assert says(refused.value, tmp_path / "checkpoints", "File exists")
