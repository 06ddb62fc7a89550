"""A user's own strategy and workload: proved, resumed bit for bit, and told of their mistakes.

Mutations that turn this red: `own_errors` left out of process_group (exit code 1 and a traceback
of ours); `digests` left out of RankInfo; Preparation without its cast (a float64 table does not fit
the model); ACCURACY in the place of the workload's metric in open_run; trajectory without
own_errors.
"""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from common.core.events import read_events
from common.core.failures import UsageError, Verdict
from common.options.command_line import parse_command_line
from common.reporting.recorded_run import find_runs
from common.reporting.tables import learned
from common.run import checkpoint_file
from scripts import prove
from studies.proof.experiment import create_reference, judged
from studies.proof.strategies import chosen
from studies.proof.trajectory import Problem
from tests.facts import says
from tests.ranks import ROOT, Outcome, cluster, error_lines, program, run_programs
from tests.workload import SMALL, plant

TASKS, SYNC = ROOT / "examples" / "own_task.py", ROOT / "examples" / "own_sync.py"
TABLE = ["--workload", f"{TASKS}:TABLE", "--threads", "1"]
SEQUENCES = ["--workload", f"{TASKS}:LONGEST_RUN", "--threads", "1"]
MISTAKEN = """import torch.distributed as dist; import os, sys

class Fails:
    steps = 0
    def average(self, gradients):
        self.steps += 1
        if self.steps == 3 and dist.get_rank() == 1:
            gradients[99].zero_()
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()

class Wants:
    def __init__(self, rate):
        pass

class NoStrategy:
    pass

def returns(gradients):
    return [gradient / 2 for gradient in gradients]

class Hooks:
    def prepare(self, model, optimizer):
        pass
    def average(self, gradients):
        pass

class Leaves(Fails):
    def average(self, gradients):
        self.steps += 1
        if self.steps == 3:
            sys.exit(0)

class Vanishes(Fails):
    def average(self, gradients):
        self.steps += 1
        if self.steps == 3 and dist.get_rank() == 1:
            os._exit(0)

not_even = 3
"""


@pytest.mark.parametrize("task, batch, sizes", [(TABLE, 35, [1, 4]), (SEQUENCES, 30, [2, 3])],
                         ids=["regression", "transformer"])
def test_the_proof_holds_for_a_task_of_ones_own(task, batch, sizes, tmp_path):
    options, settings = prove.parse([*task, "--steps", "4", "--batch-size", str(batch),
                                     "--precision", "float64"])
    reference = create_reference(Problem(settings, 100), tmp_path / "reference", 1e-9)
    strategies = chosen(["gather-scatter", f"{SYNC}:MyAllReduce", f"{SYNC}:by_broadcast", "ddp"])
    cases = list(judged(reference, strategies, sizes))
    assert {case.verdict for case in cases} == {"agrees"}
    assert max(case.gaps["weights"].absolute for case in cases) < 1e-9
    assert "own_sync.MyAllReduce" in {case.name for case in cases}


def end_of(folder: Path, run: str) -> tuple:
    """The last checkpoint's numbers, the epochs, and the evaluation."""
    contents = checkpoint_file.read(folder / run / "checkpoints" / "Epoch_2.pt")
    log = folder / run / "metrics_rank0.jsonl"
    tensors = [*contents["model_state_dict"].values(), *(
        value for state in contents["optimizer_state_dict"]["state"].values()
        for value in state.values())]
    shown = [{key: value for key, value in event.items() if "seconds" not in key}
             for kind in ("epoch", "evaluation") for event in read_events(log, kind)]
    return [each.numpy().tobytes() for each in tensors], shown, contents["totals"]


@pytest.mark.parametrize("task, part, sync, run", [
    (TABLE, "PartTwo", f"{SYNC}:MyAllReduce", "PartTwo/own_sync.MyAllReduce"),
    (SEQUENCES, "PartThree", None, "PartThree")], ids=["regression", "transformer"])
def test_it_is_killed_and_resumed_bit_for_bit(task, part, sync, run, tmp_path):
    flags = [*task, "--epochs", "2", "--batch-size", "250", "--checkpoint-every", "3",
             *(["--sync", sync] if sync else [])]

    def launch(folder: Path, *more: str, kill_at: int | None = None) -> list[Outcome]:
        return run_programs(cluster(part, 2, [*flags, "--output-dir", str(folder), *more], tmp_path,
                                    before={1: partial(plant, kill_at, rank=1)}))
    assert [each.code for each in launch(tmp_path / "whole")] == [0, 0]
    assert [each.code for each in launch(tmp_path / "killed", kill_at=5)] == [75, -9]
    assert [each.code for each in launch(tmp_path / "killed", "--resume", "auto")] == [0, 0]
    assert end_of(tmp_path / "killed", run) == end_of(tmp_path / "whole", run)


def test_another_metric_than_accuracy_is_in_logs_report_and_tables(tmp_path):
    flags = [*TABLE, "--epochs", "1", "--output-dir", str(tmp_path), "--loader", "workers:1"]
    done, = run_programs([program("PartOne", flags, tmp_path, "one")])
    assert done.code == 0, done.output
    words = r"Test Loss: \d\.\d+, Test Mean Absolute Error: (\d\.\d+)"
    error = float(re.search(words, (tmp_path / "PartOne" / "report.txt").read_text())[1])
    summary = json.loads((tmp_path / "PartOne" / "summary.json").read_text())
    assert summary["test_mean_absolute_error"] == pytest.approx(error, abs=6e-4)
    assert summary["test_samples"] == 500 and "test_accuracy" not in summary
    assert "Train Mean Absolute Error: " in (tmp_path / "PartOne" / "logs_rank0.txt").read_text()
    table = learned(find_runs([tmp_path]))
    assert "test mean absolute error" in table.head and f"{error:.2f}" in str(table.rows)


def outcomes_of(tmp_path: Path, name: str, by_rank=None, more=()) -> list[Outcome]:
    """Two ranks' ends with the strategy called `name` in a file of mistakes."""
    (tmp_path / "mine.py").write_text(MISTAKEN)
    flags = [*SMALL, "--output-dir", str(tmp_path / "out"), "--sync", f"{tmp_path}/mine.py:{name}",
             *more]
    return run_programs(cluster("PartTwo", 2, flags, tmp_path, by_rank,
                                before=dict.fromkeys(range(2), plant)))


def test_an_error_in_the_users_file_is_told_by_its_own_lines_on_every_rank(tmp_path):
    leader, other = outcomes_of(tmp_path, "Fails")
    facts = ("rank 1", "mine.py", "line 8", "IndexError: list index out of range")
    assert leader.code == other.code == 2
    assert says(error_lines(leader.output)[0], *facts)
    told = other.output[other.output.index("Traceback"):]
    assert 'mine.py", line 8, in average' in told and "gradients[99].zero_()" in told
    assert "training.py" not in told and says(error_lines(told.replace("Traceback", ""))[0], *facts)


@pytest.mark.parametrize("name, line, rank", [("Leaves", 33, "[01]"), ("Vanishes", 39, "1")])
def test_a_strategy_that_ends_its_process_is_named_by_all_ranks(name, line, rank, tmp_path):
    for outcome in outcomes_of(tmp_path, name):
        assert outcome.code == 2
        told, = error_lines(outcome.output.replace("Traceback", ""))
        assert says(told, "mine.py", f"line {line}", "epoch 1", "iteration 2", "sync",
                    "SystemExit: 0")
        assert re.search(rf"\brank {rank}\b", told)


@pytest.mark.parametrize("name, facts", [
    ("returns", ["mine.py", "in place"]), ("Wants", ["mine.py:Wants", "arguments"]),
    ("not_even", ["mine.py:not_even", "function", "class"]),
    ("NoStrategy", ["mine.py:NoStrategy", "function", "class"]),
    ("missing", ["mine.py", "missing", "NoStrategy"])])
def test_what_is_no_strategy_is_refused_in_a_sentence(name, facts, tmp_path):
    for outcome in outcomes_of(tmp_path, name):
        told = error_lines(outcome.output)[0]
        assert outcome.code == 2 and all(fact in told for fact in facts), told


def test_hooks_that_may_send_too_early_are_refused_with_several_passes(tmp_path):
    for outcome in outcomes_of(tmp_path, "Hooks", more=["--accumulate", "2"]):
        assert outcome.code == 2
        assert says(error_lines(outcome.output)[0], "prepare", "no_sync")


def test_all_ranks_must_have_the_same_file(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(MISTAKEN + "# another version\n")
    outcomes = outcomes_of(tmp_path, "Fails",
                           {1: ["--sync", f"{tmp_path}/other/mine.py:Fails"]})
    for outcome in outcomes:
        assert outcome.code == 3
        told, = error_lines(outcome.output)
        assert says(told, "mine.py", "rank 0", "rank 1")


@pytest.mark.parametrize("text, fact", [
    ("TASK = 3", "int"),
    ("from common.options.workloads import Workload\n"
     "TASK = Workload('x', print, print, defaults={'epoch': 3})", "epoch"),
    ("from common.options.workloads import Workload\n"
     "TASK = Workload('x', print, print, defaults={'schedule': 'steep'})", "steep"),
    *(("from common.options.workloads import Workload\n"
       f"TASK = Workload('x', print, print, defaults={default})", fact) for default, fact in (
        ("{'optimizer': 'adamw'}", "adamw"), ("{'batch_norm': 'sync'}", "batch_norm"),
        ("{'precision': 'float16'}", "float16"), ("{'epochs': 2.5}", "2.5"),
        ("{'epochs': 0}", "epochs"), ("{'learning_rate': -0.1}", "-0.1"),
        ("{'schedule': None}", "schedule"), ("{'tta': 'yes'}", "tta")))])
def test_what_is_no_workload_is_refused_in_a_sentence(text, fact, tmp_path):
    (tmp_path / "task.py").write_text(text)
    done, = run_programs([program("PartOne", ["--workload", f"{tmp_path}/task.py:TASK"], tmp_path,
                                  "one")])
    assert done.code == 2 and says(error_lines(done.output)[0], fact)


def test_a_name_in_no_table_is_refused_as_before():
    with pytest.raises(UsageError, match="--workload.*'no-such'"):
        parse_command_line("PartOne", ["--workload", "no-such"])


@pytest.mark.parametrize("text, facts", [
    ("self.layer(inputs.double())", ["mine.py", "line 12", "float"]),
    ("self.layer(inputs.no_such_name)", ["mine.py", "line 12", "no_such_name"])])
def test_the_proof_tells_a_mistake_as_a_run_does(text, facts, tmp_path):
    (tmp_path / "mine.py").write_text(TUPLES.replace("self.layer(inputs), inputs", text))
    _, settings = prove.parse(["--workload", f"{tmp_path}/mine.py:TASK", "--steps", "2"])
    with pytest.raises(Verdict) as raised:
        create_reference(Problem(settings, 40), tmp_path / "reference")
    assert raised.value.exit_code == 2
    assert says(str(raised.value).replace(f"{tmp_path}/", ""), "rank 0", *facts)


TUPLES = """
import numpy as np
from torch import nn

from common.options.workloads import Workload

class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(3, classes)
    def forward(self, inputs):
        return self.layer(inputs), inputs

def load(split, folder):
    return np.ones((40, 3), np.float32), np.arange(40) % 2, ["no", "yes"]

TASK = Workload("two", load, Two)
"""


@pytest.mark.parametrize("part", ["PartOne", "PartThree"])
def test_a_model_that_returns_two_tensors_is_told_so_in_every_part(part, tmp_path):
    (tmp_path / "mine.py").write_text(TUPLES)
    flags = ["--workload", f"{tmp_path}/mine.py:TASK", "--threads", "1", "--output-dir",
             str(tmp_path)]
    programs = [program(part, flags, tmp_path, "one")] if part == "PartOne" else cluster(
        part, 2, flags, tmp_path)
    for outcome in run_programs(programs):
        assert outcome.code == 2 and says(error_lines(outcome.output)[0], "tuple")
