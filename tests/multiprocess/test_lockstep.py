"""Synchronised batch norm on virtual nodes: to the bit on any number of ranks, and one rank's.

Mutations that turn this red: `_random` never kept, `_begin` not called, buffers of all shards the
model's own, or `_gather` in another order, in common/step/lockstep.py; all_reduce for the gradient
sums in common/model/batch_norm.py; no `self._lockstep` in Run.passes; `task.end()` left out;
`_deliver` without its question, or with every shard under `no_sync`; autocast's cache enabled.
"""

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common.arithmetic.pooling import PooledBatchNorm2d
from common.core.failures import UsageError
from common.core.progress import Position
from common.data.epoch_plan import ShardRange
from common.data.loaders import Batch
from common.model.batch_norm import synchronize_batch_norm
from common.model.dropout import SampleDropout
from common.settings.settings import Settings
from common.step.accumulation import micro_batches
from common.step.lockstep import Lockstep
from common.step.shard_scope import ShardScope
from common.step.virtual_nodes import VirtualNodes
from studies.proof import bits
from studies.proof.strategies import alone, alone_on_virtual_nodes, on_virtual_nodes
from studies.proof.trajectory import Problem, trajectory
from tests.multiprocess.prove_cases import ROW, small_problem
from tests.ranks import run_ranks

STEPS = 5  # of 45 samples: the last batch of an epoch is smaller, and shards are uneven


class Branches(nn.Module):
    """Every kind of layer, maps that three layers read, weights used twice, a frozen one, a GRU.

    One layer is used before and behind a batch norm: its weights, cast to half precision, too.
    """

    def __init__(self, drop: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Dropout(drop),
                                   PooledBatchNorm2d(16), nn.ReLU(), nn.Dropout(drop))
        self.one, self.other = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.other.weight = self.one.weight
        self.norm = nn.BatchNorm2d(16)
        self.scale = nn.Parameter(torch.ones(16, 1, 1), requires_grad=False)
        self.rows = nn.GRU(16, 6, batch_first=True)
        twice = nn.Linear(9, 9)
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(96, 9), twice, nn.BatchNorm1d(9),
                                  nn.Tanh(), SampleDropout(drop), twice, nn.Linear(9, 3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images)
        maps = maps * self.scale + self.norm(self.one(maps)) + self.other(maps)
        made, _ = self.rows(maps.flatten(2).mT)
        return self.last(made)


def problem_on(nodes: int | None, batch_norm: str = "synchronised", drop: float = 0.3,
               batch_size: int = 16, precision: str = "float32") -> Problem:
    problem = small_problem(precision, batch_norm, STEPS)
    return replace(problem, row=replace(ROW, build_model=build if drop else build_without_dropout),
                   settings=replace(problem.settings, batch_size=batch_size, virtual_nodes=nodes,
                                    momentum=0.9, weight_decay=1e-3))


def build(classes: int) -> nn.Module:
    return Branches()


def build_without_dropout(classes: int) -> nn.Module:
    return Branches(drop=0.0)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("references")
    return {case: bits.BitReference.create(
                problem_on(case[0], batch_size=case[1], precision=case[2]), folder / f"{case}")
            for case in ((3, 10, "float32"), (4, 16, "float32"), (8, 16, "float32"),
                         (4, 16, "bf16"), (4, 16, "fp16"))}


@pytest.mark.parametrize("case, ranks, names", [
    ((3, 10, "float32"), 1, ["all-reduce"]),
    ((3, 10, "float32"), 2, ["all-reduce", "overlapped-all-reduce", "ddp"]),
    ((3, 10, "float32"), 3, ["reduce-scatter"]),
    ((4, 16, "float32"), 2, ["gather-scatter", "cross-step-all-reduce"]),
    ((4, 16, "float32"), 3, ["overlapped-all-reduce", "ddp"]),
    ((4, 16, "float32"), 4, ["cross-step-all-reduce", "ddp"]),
    ((8, 16, "float32"), 3, ["all-reduce", "ddp"]),
    ((8, 16, "float32"), 8, ["overlapped-all-reduce"]),
    ((4, 16, "bf16"), 2, ["ddp"]), ((4, 16, "bf16"), 4, ["overlapped-all-reduce"]),
    ((4, 16, "fp16"), 2, ["all-reduce"]), ((4, 16, "fp16"), 4, ["ddp"])], ids=str)
def test_any_number_of_ranks_has_the_bits_of_one(case, ranks, names, references):
    reference = references[case]
    strategies = on_virtual_nodes(reference.problem.settings)
    found = list(bits.compared(reference, {name: strategies[name] for name in names}, [ranks]))
    assert [each.why for each in found] == [""] * len(names)
    assert {each.digest for each in found} == {reference.digest}


def test_statistics_are_those_of_the_whole_batch():
    problem = problem_on(4, drop=0.0)
    of_shards = problem_on(4, "local", drop=0.0)
    whole, = run_ranks(1, trajectory, problem_on(None, "local", drop=0.0), alone)
    for each, is_equal in ((problem, True), (of_shards, False)):
        learned, = run_ranks(1, trajectory, each, alone_on_virtual_nodes(each.settings))
        for quantity in ("loss", "weights", "statistics", "optimizer"):
            gap = max((one.double() - other.double()).abs().max().item()
                      for one, other in zip(learned[quantity], whole[quantity], strict=True))
            assert gap < 1e-5 if is_equal else gap > 1e-3


class OneStep:
    """A pass of one rank over three shards of seven samples of a row of four numbers."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.settings = synchronize_batch_norm(model), Settings(virtual_nodes=3)
        self.sync = VirtualNodes(3)
        self.sync.prepare(self.model, torch.optim.SGD(self.model.parameters(), 0.1))
        batch = Batch(torch.randn(7, 4), torch.zeros(7), shards=ShardRange(0, 3, 3))
        self.parts = [part for part, _ in micro_batches(batch, 1)]

    def __call__(self, forward=None) -> None:
        lockstep = Lockstep(self.model, ShardScope(self.model, self.settings), self.sync,
                            torch.device("cpu"), 3)
        for part in lockstep.passes(Position(), self.parts):
            loss = part.computed_by(forward or (lambda part: self.model(part.inputs).sum()))
            (loss * part.weight).backward()
        self.sync.average([each.grad for each in self.model.parameters()
                           if each.grad is not None])


class Wrong(Exception):
    pass


def in_forward(part) -> Tensor:
    if part.shard == 1:
        raise Wrong(part.shard)
    return MODEL(part.inputs).sum()


def in_backward(part) -> Tensor:
    loss = MODEL(part.inputs).sum()
    if part.shard == 1:
        loss.register_hook(lambda gradient: in_forward(part))
    return loss


MODEL = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("forward", [in_forward, in_backward])
def test_an_error_in_one_shard_is_raised_as_itself_and_leaves_no_thread(forward):
    before, parameters = threading.active_count(), list(MODEL.parameters())
    with pytest.raises(Wrong, match="1"):
        OneStep(MODEL)(forward)
    assert threading.active_count() == before
    assert all(one is other for one, other in zip(MODEL.parameters(), parameters, strict=True))


def test_a_parameter_without_a_gradient_has_none_and_others_the_mean():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    model[0].unused = nn.Parameter(torch.ones(3))
    OneStep(model)()
    assert {name for name, each in model.named_parameters() if each.grad is None} == {"0.unused"}


def test_buffers_move_once_a_step():
    model = nn.Sequential(nn.BatchNorm1d(4))
    step = OneStep(model)
    step()
    assert model[0].num_batches_tracked.item() == 1
    whole = torch.cat([part.inputs for part in step.parts])
    torch.testing.assert_close(model[0].running_mean, 0.1 * whole.mean(0))
    torch.testing.assert_close(model[0].running_var, 0.9 + 0.1 * whole.var(0))


class Hidden(nn.Module):
    """Uses a parameter by a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.BatchNorm1d(4), nn.Parameter(torch.ones(4))
        self.used = [self.weight]

    def forward(self, rows: Tensor) -> Tensor:
        return self.norm(rows) * self.used[0]


def test_what_lockstep_cannot_do_is_one_sentence():
    with pytest.raises(UsageError, match="attribute of its module"):
        OneStep(Hidden())()
    norm = synchronize_batch_norm(nn.BatchNorm1d(4))
    with pytest.raises(UsageError, match="same layers"):
        OneStep(norm)(lambda part: norm(part.inputs if part.shard else norm(part.inputs)).sum())
    with pytest.raises(UsageError, match="3 ranks on a GPU"):
        Lockstep(norm, ShardScope(norm, Settings()), VirtualNodes(3), torch.device("cuda"), 3)
