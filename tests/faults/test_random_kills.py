"""Killed at random moments, a resumed run leaves what an undisturbed one leaves.

All two hundred are one command; see random_kills.py. Mutations that turn this red: leave tensors,
or one kind of file, out of entries_of_run; a Totals of floats; the settled convolutions in the
settings of a run; drop finish_save, or either half of it; write the best checkpoint last.
"""

import json
import os
import shutil
import signal
from functools import partial

import pytest
import torch

from common.core.progress import Position
from common.run import checkpoint_file
from tests.facts import says
from tests.faults.compared_runs import differences
from tests.faults.random_kills import CELLS, VICTIMS, draw, main
from tests.runs import Case, launch
from tests.small import small_model
from tests.workload import plant


@pytest.fixture
def run(tmp_path):
    """A folder with each kind of file that a run leaves."""
    folder = tmp_path / "one"
    model = small_model(torch.float32)
    checkpoint_file.write(folder / "checkpoints" / "Epoch_1.pt", checkpoint_file.pack(
        model, torch.optim.SGD(model.parameters(), 0.1), Position(2, 0, 9), float("nan"),
        settings={"seed": 1}))
    (folder / "summary.json").write_text(json.dumps({"loss": 0.5, "mean_iteration_seconds": 3.0}))
    (folder / "logs_rank0.txt").write_text("Batch Idx: 0, Batch Duration: 0.125 seconds\nend\n")
    (folder / "metrics_rank0.jsonl").write_text(
        '{"event": "start", "position": [1, 0, 0], "time": 1}\n{"event": "step", "loss": 1.5}\n')
    return folder


def test_runs_that_differ_only_in_times_and_in_what_is_said_again_are_the_same(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "summary.json").write_text(json.dumps({"loss": 0.5, "mean_iteration_seconds": 4.0}))
    (other / "logs_rank0.txt").write_text(
        "Batch Idx: 0, Batch Duration: 0.250 seconds\n(bit-exact: yes)\n"
        "Batch Idx: 0, Batch Duration: 0.125 seconds\nend\n")
    with (other / "metrics_rank0.jsonl").open("a") as file:
        file.write('{"event": "start", "position": [1, 4, 4], "time": 2}\n'
                   '{"event": "note", "text": "(bit-exact: yes)"}\n{"event": "failed"}\n')
    assert differences(run, other) == []


@pytest.mark.parametrize("name, before, after", [
    ("summary.json", "0.5", "0.25"), ("logs_rank0.txt", "Idx: 0", "Idx: 1"),
    ("metrics_rank0.jsonl", "1.5}", "1.25}"), ("metrics_rank0.jsonl", "1.5}", '1.5, "more": 1}'),
    ("metrics_rank0.jsonl", "1.5}\n", '1.5}\n{"event": "step", "loss": 1.5}\n')])
def test_any_other_difference_is_found(name, before, after, run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = (run / name).read_text()
    (other / name).write_text(text.replace(before, after))
    assert differences(run, other) and all(name in line for line in differences(run, other))


def test_a_changed_bit_and_a_missing_file_are_found(run, tmp_path):
    other, name = tmp_path / "other", "Epoch_1.pt"
    shutil.copytree(run, other)
    contents = checkpoint_file.read(run / "checkpoints" / name)
    contents["model_state_dict"]["layers.0.bias"].view(torch.int32)[0] ^= 1
    checkpoint_file.write(other / "checkpoints" / name, contents)
    line, = differences(run, other)
    assert line.startswith("checkpoints/Epoch_1.pt: .model_state_dict.layers.0.bias: torch.float32")
    (other / "logs_rank0.txt").unlink()
    assert "logs_rank0.txt" in " ".join(differences(run, other))


def test_twenty_kills_are_one_in_each_cell_and_of_all_kinds():
    kills = [draw(number, 1) for number in range(200)]
    assert {kill.cell for kill in kills[:20]} == set(CELLS) and len(CELLS) == 20
    assert {kill.victims for kill in kills} == set(VICTIMS)
    assert draw(7, 1) == draw(7, 1) != draw(7, 2)


def plant_kill(name: str) -> None:
    """The small workload; kills the process as soon as a checkpoint of that name is written."""
    plant()
    write = checkpoint_file.write

    def write_and_die(path, contents) -> None:
        write(path, contents)
        if path.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
    checkpoint_file.write = write_and_die


@pytest.mark.parametrize("name", ["Epoch_2.pt", "best.pt"])
def test_a_run_killed_right_after_a_file_was_written_lacks_nothing(name, tmp_path):
    """Neither its place among the metrics, nor the best, nor is there an older one too many."""
    case, folder = Case("PartOne", 1, "memory", 4, 0), tmp_path / "run"
    flags = ["--validation", "0.3"]
    folder.mkdir()
    launch(case, folder, "auto", more=flags)
    whole = folder.rename(tmp_path / "undisturbed")
    folder.mkdir()
    launch(case, folder, "auto", before=partial(plant_kill, name), more=flags, code=-9)
    launch(case, folder, "auto", more=flags)
    assert differences(whole / "PartOne", folder / "PartOne") == []


def test_a_run_goes_on_from_a_file_of_its_own_folder_that_is_no_save_of_its_own(tmp_path):
    case, flags = Case("PartOne", 1, "memory", 4, 0), ["--validation", "0.3"]
    launch(case, tmp_path, "no", more=flags)
    launch(case, tmp_path, str(tmp_path / "PartOne" / "checkpoints" / "best.pt"), more=flags)


@pytest.mark.slow
def test_random_kills_leave_no_difference(tmp_path, capsys):
    flags = ["--seed", "22", "--folder", str(tmp_path)]
    assert main(["3", *flags]) == 0, capsys.readouterr().out
    assert main(["5", *flags]) == 0 and says(capsys.readouterr().out, "5 of 5")
