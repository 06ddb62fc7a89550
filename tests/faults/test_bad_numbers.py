"""A loss or gradient that is not finite, on one rank only, stops all ranks at the same step.

Mutations that turn this red: drop `require_finite` from a strategy's `average`, from
comm_hooks._check or from OverlappedAllReduce._send, or `_require_in_range` from Wire.pack (the
wrong rank is named); drop the isfinite from `forward`; return the norm's verdict without looking
(large gradients are refused); drop the isfinite from evaluate.
"""

from functools import partial
from pathlib import Path

import pytest
import torch

from common.core.events import read_events
from common.run import checkpoint_file, checkpoint_folder
from common.step.gradient_check import NotFinite, require_finite
from tests.facts import says
from tests.faults.disturbed import joined, plant_phases, running
from tests.ranks import error_lines, program, run_programs
from tests.runs import FOLDERS, Case
from tests.workload import SMALL, plant

KINDS = [("PartOne", 1), ("gather-scatter", 3), ("all-reduce", 3), ("PartThree", 3),
         ("overlapped-all-reduce", 3), ("cross-step-all-reduce", 3)]
BAD_AT = 7


def plant_bad_number(folder: Path, what: str, value: float) -> None:
    """In step 7 this rank's loss, or the gradient of layers.4.weight, becomes `value`."""
    from common.run import run

    plant_phases(folder)
    iterations = run.Run.iterations

    def planted(self: run.Run):
        for iteration in iterations(self):
            plant_bad_number.step = self.position.step
            yield iteration
    run.Run.iterations = planted
    from torch import nn

    from tests import small

    def bad(tensor):
        return torch.full_like(tensor, value) if plant_bad_number.step == BAD_AT else tensor

    class Criterion(nn.CrossEntropyLoss):
        def forward(self, outputs, targets):
            loss = super().forward(outputs, targets)
            return bad(loss) if what == "loss" and self.training else loss

    nn.CrossEntropyLoss, create = Criterion, small.SmallNet.__init__
    plant_bad_number.step = 0

    def create_with_hook(self, *arguments) -> None:
        create(self, *arguments)
        if what == "gradient":
            self.layers[4].weight.register_hook(bad)
    small.SmallNet.__init__ = create_with_hook


@pytest.mark.parametrize("what, value", [("loss", float("nan")), ("gradient", float("inf"))])
@pytest.mark.parametrize("run, size", KINDS)
def test_all_ranks_stop_at_the_same_step(run, size, what, value, tmp_path):
    culprit = size - 1
    case = Case(run, size, "memory", 3, 0)
    plants = {culprit: partial(plant_bad_number, tmp_path, what, value)}
    with running(case, tmp_path, plants=plants) as programs:
        codes, _ = joined(programs, 60)
    assert codes == [5] * size, [each.output() for each in programs]
    for each in programs:
        line, = error_lines(each.output())
        assert says(line, f"rank {culprit}", "epoch 1", f"iteration {BAD_AT}", what)
        assert "Epoch_1_Iteration_6.pt" in line
        assert says(line, "layers.4.weight") == (what != "loss")
    for rank in range(size):
        steps = list(read_events(tmp_path / FOLDERS[run] / f"metrics_rank{rank}.jsonl", "step"))
        # Across steps the other ranks may end theirs, and miss the mean in the next one only; or be
        # stopped before they have logged the one before, whose gradients they have sent.
        free = run == "cross-step-all-reduce" and rank != culprit
        assert len(steps) in (range(BAD_AT - 1, BAD_AT + 2) if free else (BAD_AT,))
    for path in checkpoint_folder.newest(tmp_path / FOLDERS[run] / "checkpoints"):
        for tensor in checkpoint_file.read(path)["model_state_dict"].values():
            assert bool(tensor.isfinite().all())


@pytest.mark.parametrize("run", ["gather-scatter", "PartThree", "cross-step-all-reduce"])
def test_so_do_ranks_with_several_virtual_nodes(run, tmp_path):
    plants = {2: partial(plant_bad_number, tmp_path, "gradient", float("inf"))}
    with running(Case(run, 3, "memory", 3, 0), tmp_path, more=("--virtual-nodes", "6"),
                 plants=plants) as programs:
        codes, _ = joined(programs, 60)
    assert codes == [5] * 3, [each.output() for each in programs]
    for each in programs:
        line, = error_lines(each.output())
        assert says(line, "gradient", "layers.4.weight", "rank 2", "epoch 1", f"iteration {BAD_AT}")


@pytest.mark.parametrize("run", ["all-reduce", "overlapped-all-reduce", "cross-step-all-reduce",
                                 "PartThree"])
def test_so_they_do_where_a_gradient_is_too_large_for_fp16(run, tmp_path):
    """Part Three looks at the mean, which does not show which rank's gradient it was."""
    plants = {2: partial(plant_bad_number, tmp_path, "gradient", 3e5)}
    with running(Case(run, 3, "memory", 3, 0), tmp_path, more=("--wire", "fp16"),
                 plants=plants) as programs:
        codes, _ = joined(programs, 60)
    assert codes == [5] * 3, [each.output() for each in programs]
    for each in programs:
        line, = error_lines(each.output())
        assert says(line, "epoch 1", f"iteration {BAD_AT}")
        assert says(line, *(["gradient", "layers.4.weight"] if run == "PartThree" else
                            ["--wire fp16", "rank 2"]))
    for path in checkpoint_folder.newest(tmp_path / FOLDERS[run] / "checkpoints"):
        contents = checkpoint_file.read(path)
        assert all(bool(tensor.isfinite().all()) for tensor in (
            *contents["model_state_dict"].values(), *sum(contents["rank_state"], [])))


def test_weights_that_the_last_update_made_non_finite(tmp_path):
    """No later loss could tell: the evaluation does."""
    outcome, = run_programs([program("PartOne", [
        *SMALL, "--max-iterations", "1", "--learning-rate", "4e18", "--output-dir", str(tmp_path)],
        tmp_path, "rank0", before=plant)])
    line, = error_lines(outcome.output)
    assert outcome.code == 5 and says(line, "test loss", "nan"), outcome.output


def test_large_is_not_infinite():
    require_finite([torch.full((4,), 1e30), torch.ones(3)])
    tensors, parameters = [torch.ones(4), torch.tensor([1.0, float("nan"), 1.0])], [
        torch.zeros(4), torch.zeros(3)]
    for owners, expected in ((None, tensors[1]), (parameters, parameters[1])):
        with pytest.raises(NotFinite) as raised:
            require_finite(tensors, parameters=owners)
        assert raised.value.tensor is expected
