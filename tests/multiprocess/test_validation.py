"""Validation and early stopping: one decision, the same on any number of ranks, and after a kill.

Mutations that turn this red: each rank its own loss in Run.note_validation; leave evaluate's sum
over ranks out; validate on the training set, or train on what is held out; write every epoch or
none to best.pt, or leave it on replace; drop validation_losses from the checkpoint; keep the
validation lines that a killed run wrote too far; leave the seed out of the split; leave the model
in evaluation mode; say everywhere that the best is kept, or wherever there is a best.pt; leave it
where it is on resume, or put it aside whenever it is not the best so far.
"""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from common.cluster.node import Node
from common.core.events import read_events
from common.core.failures import DataError
from common.core.progress import Position
from common.core.world import World
from common.data.datasets import load_spirals
from common.options.command_line import parse_command_line
from common.run import checkpoint_file, checkpoint_folder
from common.run.run_log import RunLog
from common.run.state import State
from common.settings.types import Validation
from common.setup import hold_out
from tests.facts import says
from tests.ranks import cluster, program, run_programs, run_ranks
from tests.small import small_model, small_run
from tests.workload import SMALL, plant

SPIRAL = ["--workload", "spiral-mlp", "--threads", "1", "--batch-size", "500", "--learning-rate",
          "0.006", "--precision", "float64"]


def spiral(world_size: int, folder, *flags: str) -> dict:
    """Runs the workload and returns the leader's result; all ranks must stop alike."""
    folder.mkdir()
    every = [*SPIRAL, *flags, "--output-dir", str(folder / "out")]
    programs = ([program("PartOne", every, folder, "rank0")] if world_size == 1 else
                cluster("PartTwo", world_size, [*every, "--sync", "all-reduce"], folder))
    outcomes = run_programs(programs)
    assert {outcome.code for outcome in outcomes} == {0}, outcomes
    run = folder / "out" / ("PartOne" if world_size == 1 else "PartTwo/all-reduce")
    last = [list(read_events(run / f"metrics_rank{rank}.jsonl", "epoch"))[-1]["epoch"]
            for rank in range(world_size)]
    assert len(set(last)) == 1
    assert any(says(event["text"], f"epoch {last[0]}")
               for event in read_events(run / "metrics_rank0.jsonl", "note"))
    losses = [event["loss"] for event in read_events(run / "metrics_rank0.jsonl", "validation")]
    return {"epoch": last[0], "losses": losses,
            **json.loads((run / "summary.json").read_text())}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return spiral(1, tmp_path_factory.mktemp("one") / "run")


def test_spirals_are_told_apart_with_early_stopping(one_process):
    assert one_process["test_accuracy"] > 0.95 and one_process["test_samples"] == 1500
    assert 4 <= one_process["epoch"] < 50


@pytest.mark.parametrize("world_size", [2, 4])
def test_any_number_of_processes_stops_at_the_same_epoch(world_size, one_process, tmp_path):
    other = spiral(world_size, tmp_path / "run")
    assert other["epoch"] == one_process["epoch"]
    assert other["losses"] == pytest.approx(one_process["losses"], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_with_the_workloads_own_numbers(world_size, tmp_path):
    result = spiral(world_size, tmp_path / "run", "--batch-size", "128", "--learning-rate", "0.001",
                    "--precision", "float32")
    assert result["test_accuracy"] > 0.95


# A gain of 9 is out of reach, so the run stops after epoch 1 + patience.
STOPPING = ["--validation", "0.2:4:9", "--epochs", "9", "--checkpoint-every", "3"]


def small(folder, *flags: str, before=plant, code: int = 0) -> str:
    outcome, = run_programs([program("PartOne", [*SMALL, *STOPPING, "--output-dir", str(folder),
                                                 *flags], folder, "rank0", before=before)])
    assert outcome.code == code, outcome.output
    return outcome.output


def history(folder) -> list[tuple]:
    return [(event["epoch"], event["loss"]) for event in
            read_events(folder / "PartOne" / "metrics_rank0.jsonl", "validation")]


@pytest.mark.parametrize("kill_at", [4, 17, 39])
def test_a_killed_run_stops_where_it_would_have(kill_at, tmp_path):
    """90 samples of which 18 validate: 8 steps an epoch, 40 in all."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    small(tmp_path / "whole")
    assert any(says(event["text"], "epoch 5") for event in read_events(
        tmp_path / "whole/PartOne/metrics_rank0.jsonl", "note"))
    small(tmp_path / "killed", before=partial(plant, kill_at=kill_at), code=-9)
    small(tmp_path / "killed", "--resume", "auto")
    assert history(tmp_path / "killed") == history(tmp_path / "whole")
    assert [epoch for epoch, _ in history(tmp_path / "killed")] == [1, 2, 3, 4, 5]
    assert small(tmp_path / "killed", "--resume", "auto").count("Validation Loss") == 0


def test_the_best_epoch_survives_pruning_and_replace_removes_it(tmp_path):
    small(tmp_path, "--validation", "0.2")  # labels are random: what it learns is useless
    losses = [loss for _, loss in history(tmp_path)]
    best = int(np.argmin(losses)) + 1
    folder = tmp_path / "PartOne" / "checkpoints"
    assert best <= 7 and not (folder / f"Epoch_{best}.pt").exists()
    contents = checkpoint_file.read(folder / checkpoint_folder.BEST)
    assert contents["epoch"] == best and contents["validation_losses"] == losses[:best]
    small(tmp_path, "--resume", "replace", "--validation", "0.2", "--max-iterations", "2")
    assert not (folder / checkpoint_folder.BEST).exists()


def test_a_run_that_goes_back_puts_the_best_of_what_it_gives_up_aside(tmp_path):
    flags = ["--validation", "0.2", "--epochs", "2", "--checkpoint-every", "0"]
    small(tmp_path, *flags)
    folder = tmp_path / "PartOne" / "checkpoints"
    best = folder / checkpoint_folder.BEST
    shutil.copy(folder / "Epoch_2.pt", best)  # whatever came out, say that epoch 2 was the best
    small(tmp_path, *flags, "--resume", f"{folder}/Epoch_1.pt:changed", "--learning-rate", "9")
    assert checkpoint_file.read(folder / "best.pt.aside")["epoch"] == 2


@pytest.mark.parametrize("in_file, before, more, stays", [
    ([1.0, 0.5], [1.0, 0.5, 0.9], [], True), ([1.0], [1.0], [], True),
    ([1.0, 0.4], [1.0, 0.5, 0.9], [], False), ([1.0], [1.0, 0.5], [], False),
    ([1.0, 0.5], [1.0], [], True),  # ahead: killed before the second file of that save
    ([1.0, 0.5], [1.0], ["--learning-rate", "0.5"], False), ([1.0, 0.5], [0.9], [], False),
    (None, [1.0], [], False)])  # damaged
def test_the_best_stays_where_it_is_the_runs_own(in_file, before, more, stays, tmp_path):
    node = Node(World(), torch.device("cpu"), 1)
    with RunLog(tmp_path / "log", tmp_path / "jsonl", node.world) as log:
        run = small_run(tmp_path, settings(*more), node, log, small_model())
    run.checkpoints.constants["data"] = "d"
    torch.save({"validation_losses": in_file, "settings": settings().as_json(), "data": "d"}
               if in_file else {}, run.checkpoints.best)
    run.checkpoints.leave_other_line(State(Position(9), validation_losses=before), run.settings)
    assert run.checkpoints.best.exists() == stays


def settings(*flags: str):
    return parse_command_line("PartOne", ["--workload", "spiral-mlp", *flags])[0]


def test_the_split_is_70_15_15_and_follows_the_seed_alone():
    whole = load_spirals("train")
    trained, held_out = hold_out(whole, settings())
    assert (len(trained), len(held_out), len(load_spirals("test"))) == (7000, 1500, 1500)
    rows = {tuple(row) for part in (trained, held_out) for row in part.inputs.reshape(-1, 2)}
    assert rows == {tuple(row) for row in whole.inputs.reshape(-1, 2)}
    again = hold_out(whole, settings("--batch-size", "50"))[1]
    other = hold_out(whole, settings("--seed", "2"))[1]
    assert held_out.digest == again.digest != other.digest
    assert held_out.targets.mean() == pytest.approx(0.5, abs=0.05)


def noted(folder: str) -> list[float]:
    """The history of a rank whose own number is larger the higher its rank."""
    rank = dist.get_rank()
    node = Node(World(rank, dist.get_world_size()), torch.device("cpu"), 1)
    with RunLog(Path(folder) / f"log{rank}", Path(folder) / f"jsonl{rank}", node.world) as log:
        run = small_run(Path(folder), settings(), node, log, small_model())
        run.note_validation(1, 0.5 + rank, 0.5)
        return run.state.validation_losses


def test_the_leaders_loss_counts_on_all_ranks(tmp_path):
    assert run_ranks(3, noted, str(tmp_path)) == [[0.5]] * 3


@pytest.mark.parametrize("losses, rank, in_file, is_kept", [
    ([0.5, 0.9], 0, [1.0, 0.5], True), ([0.5, 0.9], 0, [], False),  # resumed from another folder
    ([0.5, 0.9], 0, [1.0, 0.4], False),  # of another line of training
    ([0.9], 0, [], True),  # the epoch that is about to be saved is the best
    ([0.5, 0.9], 1, [1.0, 0.5], False)])  # on the leader's disk alone
def test_the_best_is_said_to_be_kept_where_it_is(losses, rank, in_file, is_kept, tmp_path):
    node = Node(World(rank, 2), torch.device("cpu"), 1)
    stopping = settings("--validation", f"0.2:{len(losses)}:9")
    with RunLog(tmp_path / "log", tmp_path / "jsonl", node.world) as log:
        run = small_run(tmp_path, stopping, node, log, small_model())
        if in_file:
            torch.save({"validation_losses": in_file}, run.checkpoints.best)
        run.state.validation_losses = [1.0, *losses[:-1]]
        run.note_validation(len(losses) + 1, losses[-1], 0.5)
    said, = (event["text"] for event in read_events(tmp_path / "jsonl", "note"))
    assert says(said, tmp_path / "best.pt") == is_kept


def test_a_resumed_log_keeps_no_validation_from_ahead(tmp_path):
    world, files = World(), (tmp_path / "log", tmp_path / "jsonl")
    with RunLog(*files, world) as log:
        for epoch in (1, 2, 3):
            log.validation(epoch, 0.5, 0.5)
    with RunLog(*files, world, Position(3, 0, 16)):
        pass
    assert [event["epoch"] for event in read_events(files[1])] == [1, 2]


def test_nothing_to_validate_on_is_one_sentence():
    few = load_spirals("train").part(np.arange(3))
    with pytest.raises(DataError, match=r"\b3\b.*\b0\b"):
        hold_out(few, replace(settings(), validation=Validation(0.1)))
    assert hold_out(few, replace(settings(), validation=Validation())) == (few, None)
