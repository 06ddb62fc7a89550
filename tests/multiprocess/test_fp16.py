"""--precision fp16: a step that overflows on one rank is skipped on all, and so it stays resumed.

Mutations that turn this red: let require_finite raise under a scale; keep the gradients in
LossScale._before_step; drop loss_scale from Checkpoints.save, or its restore from resuming.py.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from common.core.events import read_events
from common.run import checkpoint_file
from tests.facts import says
from tests.faults.test_bad_numbers import BAD_AT, plant_bad_number
from tests.ranks import run_programs
from tests.runs import FOLDERS, Case, end_of, programs_of, same_bits
from tests.workload import plant

FP16 = ("--precision", "fp16", "--check-every", "1")
VIRTUAL = ("--virtual-nodes", "4")
CASES = [("PartOne", 1, ()), ("gather-scatter", 3, ()), ("all-reduce", 2, ()),
         ("overlapped-all-reduce", 3, ()), ("gather-scatter-pipelined", 2, ()),
         ("reduce-scatter", 2, ()), ("PartThree", 3, ()), ("PartOne", 1, VIRTUAL),
         ("all-reduce", 3, VIRTUAL), ("overlapped-all-reduce", 2, VIRTUAL),
         ("PartThree", 2, VIRTUAL)]


def plant_overflow(folder: Path, kill_at: int | None = None) -> None:
    """In step 7 a gradient of this rank is infinite; after `kill_at` steps it kills itself."""
    plant_bad_number(folder, "gradient", float("inf"))
    plant(kill_at)


def launch(case: Case, folder: Path, *more: str, resume: str = "no",
           kill_at: int | None = None) -> list[str]:
    """Runs the case in fp16, in which the last rank overflows; returns what the ranks printed."""
    folder.mkdir(exist_ok=True)
    before: dict[int, Any] = dict.fromkeys(range(case.world_size), partial(plant, kill_at))
    before[case.world_size - 1] = partial(plant_overflow, folder, kill_at)
    found = run_programs(programs_of(case, folder, resume, before, (*FP16, *more)))
    assert {each.code for each in found} == {0 if kill_at is None else -9}, found
    return [each.output for each in found]


def saved(case: Case, folder: Path, name: str) -> dict[str, Any]:
    return checkpoint_file.read(folder / FOLDERS[case.run] / "checkpoints" / name)


@pytest.mark.parametrize("run, size, more", CASES)
def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(run, size, more, tmp_path):
    """The replicas are compared after every step."""
    case = Case(run, size, "memory", BAD_AT, 0)
    launch(case, tmp_path, *more, "--max-iterations", str(BAD_AT + 1))
    logs = [tmp_path / FOLDERS[run] / f"metrics_rank{rank}.jsonl" for rank in range(size)]
    skipped = [[event["text"] for event in read_events(log, "note") if says(event["text"], "fp16")]
               for log in logs]
    assert says(skipped[0][-1], "epoch 1", f"iteration {BAD_AT}")
    assert skipped == [skipped[0]] * size
    before, after = (saved(case, tmp_path, f"Epoch_1_Iteration_{number}.pt")
                     for number in (BAD_AT, BAD_AT + 1))
    assert before["loss_scale"]["scale"] == 2 * after["loss_scale"]["scale"]
    for name, tensor in before["model_state_dict"].items():
        assert "running" in name or "tracked" in name or torch.equal(
            tensor, after["model_state_dict"][name])
    states = [each["optimizer_state_dict"]["state"].values() for each in (before, after)]
    momenta = [[state["momentum_buffer"] for state in each] for each in states]
    assert momenta[0] and all(map(torch.equal, *momenta))


@pytest.mark.parametrize("run, size, more", [
    ("PartOne", 1, ()), ("all-reduce", 3, ()), ("PartThree", 2, VIRTUAL)])
def test_a_killed_run_goes_on_with_its_scale_bit_for_bit(run, size, more, tmp_path):
    case, whole, resumed = Case(run, size, "memory", 4, 10), tmp_path / "a", tmp_path / "b"
    launch(case, whole, *more)
    launch(case, resumed, *more, kill_at=case.kill_at)
    launch(case, resumed, *more, resume="auto")
    assert same_bits(end_of(case, whole), end_of(case, resumed))
    scales = [saved(case, folder, "Epoch_2.pt")["loss_scale"] for folder in (whole, resumed)]
    assert scales[0] == scales[1] and scales[0]["scale"] < 65536.0


def test_virtual_nodes_have_the_same_bits_on_any_number_of_ranks(tmp_path):
    cases = [Case("PartOne", 1, "memory", 0, 0), Case("all-reduce", 2, "memory", 0, 0),
             Case("PartThree", 3, "memory", 0, 0)]
    for case in cases:
        launch(case, tmp_path / case.run, *VIRTUAL)
    one, *others = (end_of(case, tmp_path / case.run).weights for case in cases)
    for other in others:
        assert all(torch.equal(one[name], other[name]) for name in one)
