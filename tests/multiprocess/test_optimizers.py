"""Optimizers and schedules by flag: resumed bit for bit, and never mixed up.

Mutations that turn this red: count the schedule's steps from the start of the process; leave
"epochs" or "schedule" out of Settings.trajectory, or the defaults out of _check_settings; drop
the comparison in _restore_optimizer; ignore --momentum for Adam.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from common.core.events import read_events
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.options.command_line import parse_command_line
from common.run import checkpoint_file
from common.step.optimizers import create_optimizer
from tests.facts import says
from tests.ranks import error_lines, program, run_programs
from tests.small import small_model
from tests.workload import SMALL, plant


def run(folder: Path, *flags: str, before=plant, code: int = 0) -> str:
    outcome, = run_programs([program("PartOne", [
        *SMALL, "--checkpoint-every", "2", "--output-dir", str(folder), *flags], folder, "rank0",
        before=before)])
    assert outcome.code == code, outcome.output
    return outcome.output


def end_of(folder: Path) -> dict:
    contents = checkpoint_file.read(folder / "PartOne" / "checkpoints" / "Epoch_2.pt")
    steps = [(step["iteration"], step["loss"], step["learning_rate"])
             for step in read_events(folder / "PartOne" / "metrics_rank0.jsonl", "step")]
    return {"weights": contents["model_state_dict"], "steps": steps,
            "optimizer": contents["optimizer_state_dict"]["state"]}


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("flags", [
    ("--optimizer", "adam", "--learning-rate", "0.01", "--schedule", "one-cycle"),
    ("--optimizer", "adadelta", "--schedule", "step:1:0.5"),
    ("--optimizer", "muon", "--momentum", "0.7", "--schedule", "linear"),
    ("--schedule", "cosine:0.7"),
], ids=" ".join)
def test_a_killed_run_resumes_bit_for_bit(flags, tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", *flags)
    run(tmp_path / "killed", *flags, before=partial(plant, kill_at=11), code=-9)
    run(tmp_path / "killed", *flags, "--resume", "auto")
    assert same(end_of(tmp_path / "killed"), end_of(tmp_path / "whole"))
    assert len({rate for _, _, rate in end_of(tmp_path / "whole")["steps"]}) > 1


@pytest.mark.parametrize("before, now, facts", [
    (["--optimizer", "adam"], [], ("optimizer", "adam", "sgd")),
    ([], ["--schedule", "cosine"], ("schedule", "constant", "cosine")),
    (["--schedule", "cosine"], ["--schedule", "cosine", "--epochs", "3"], ("epochs", 2, 3)),
    ([], ["--validation", "0.5"], ("validation", 0, 0.5)),
])
def test_other_settings_on_resume_are_named(before, now, facts, tmp_path):
    run(tmp_path, *before, "--max-iterations", "2")
    said = run(tmp_path, *now, "--resume", "auto", code=2)
    assert says(error_lines(said)[0], *facts, "--resume auto:changed")


def test_more_epochs_are_no_other_settings_where_the_rate_does_not_depend_on_them(tmp_path):
    run(tmp_path, "--schedule", "step", "--max-iterations", "2")
    run(tmp_path, "--schedule", "step", "--epochs", "3", "--resume", "auto")


def test_another_optimizers_state_is_refused_even_when_changes_are_accepted(tmp_path):
    run(tmp_path, "--optimizer", "adam", "--max-iterations", "2")
    said = run(tmp_path, "--resume", "auto:changed", code=4)
    assert says(error_lines(said)[0], "Adam", "SGD")


def test_restore_names_both_optimizers(tmp_path):
    model = small_model()
    contents = checkpoint_file.pack(model, torch.optim.Adam(model.parameters()), Position(), 0.0)
    with pytest.raises(CheckpointError, match="Adam.*SGD"):
        checkpoint_file.restore(contents, "file", model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("name, kind, entries", [
    ("sgd", torch.optim.SGD, {"lr": 0.3, "momentum": 0.7, "weight_decay": 0.01}),
    ("adam", torch.optim.Adam, {"lr": 0.3, "betas": (0.7, 0.999), "weight_decay": 0.01}),
    ("adadelta", torch.optim.Adadelta, {"lr": 0.3, "rho": 0.7, "weight_decay": 0.01}),
])
def test_flags_reach_the_optimizer(name, kind, entries):
    settings, _ = parse_command_line("PartOne", [
        "--optimizer", name, "--learning-rate", "0.3", "--momentum", "0.7", "--weight-decay",
        "0.01"])
    optimizer = create_optimizer(settings, small_model())
    assert isinstance(optimizer, kind) and type(optimizer).__name__ == kind.__name__
    assert {key: optimizer.param_groups[0][key] for key in entries} == entries
