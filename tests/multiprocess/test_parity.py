"""Every way of averaging gradients trains the same model as one rank does; not averaging does not.

Mutations that turn this red: make every weight of loaders.shards 1; drop `.div_` in
all_reduce; scatter `row` instead of `mean`; skip the last tensor in Flat; sum(received) for
a sum in gather_scatter that begins with 0.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from common.cluster.node import Node
from common.core.world import World
from common.run.run_log import RunLog
from common.settings.settings import Settings
from common.settings.strategies import LOCAL_SYNC_NAMES, SYNC_NAMES, VIRTUAL_SYNC_NAMES
from common.step.gradient_sync import GradientSync
from common.training import train
from PartThree.ddp import OWN_BUFFERS, AveragedInBackward, buckets
from PartTwo.strategies import ON_VIRTUAL_NODES, STRATEGIES, create_strategy
from PartTwo.sync_options import DEFAULTS, SyncOptions
from studies.proof.trajectory import Recorder
from tests.ranks import ROOT, run_ranks
from tests.small import small_loader, small_model, small_run

TOLERANCE = 1e-12
OVERLAPPING = ("overlapped-all-reduce", "cross-step-all-reduce")
SMALL_BUCKETS = 0.0004  # megabytes: several for the small model
SMALL_OPTIONS = SyncOptions(SMALL_BUCKETS)


class EveryStep(Recorder):
    """Keeps the gradients of each step that the optimizer was given."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.kept: list[dict[Parameter, Tensor]] = []

    def _note(self, optimizer: Optimizer) -> None:
        super()._note(optimizer)
        if self.last and (not self.kept or self.kept[-1] is not self.last):
            self.kept.append(self.last)


def trained(strategy: str, options: SyncOptions = SMALL_OPTIONS,
            ) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Two epochs of the real loop: the gradients of each step, and the weights at the end."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    bare: nn.Module = small_model()
    model, sync = bare, GradientSync()
    if strategy == "ddp":
        model = DistributedDataParallel(bare, **OWN_BUFFERS, **buckets(SMALL_BUCKETS))
        sync = AveragedInBackward(model, "float32")
    elif strategy != "none":
        sync = create_strategy(strategy, options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4)
    sync.prepare(bare, optimizer)
    recorder, loader = EveryStep(optimizer), small_loader(rank, world_size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Settings(workload="small", epochs=2, batch_size=10, precision="float64")
        world = World(rank, world_size)
        with RunLog(folder / "log", folder / "jsonl", world) as log:
            run = small_run(folder, settings, Node(world, torch.device("cpu"), 1), log, bare,
                            optimizer, sync, loader.plan.iterations)
            train(model, nn.CrossEntropyLoss(), optimizer, loader, sync, run)
    trained = list(model.parameters())
    return [[step[p] for p in trained] for step in recorder.kept], [p.detach() for p in trained]


def largest_gap(ours, theirs) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def one_rank():
    return run_ranks(1, trained, "none")[0]


def compare(world_size: int, strategy: str, one_rank) -> tuple[float, float]:
    """The largest difference from one rank, over all ranks: of any gradient, of any weight."""
    gradients, weights = 0.0, 0.0
    for kept, parameters in run_ranks(world_size, trained, strategy):
        assert len(kept) == len(one_rank[0]) == 10
        gradients = max(gradients, *(largest_gap(a, b)
                                     for a, b in zip(kept, one_rank[0], strict=True)))
        weights = max(weights, largest_gap(parameters, one_rank[1]))
    return gradients, weights


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", [*SYNC_NAMES, "ddp"])
def test_trains_the_same_model_as_one_rank(strategy, world_size, one_rank):
    gradients, weights = compare(world_size, strategy, one_rank)
    assert gradients < TOLERANCE
    assert weights < TOLERANCE


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_without_synchronisation_the_same_comparison_fails(world_size, one_rank):
    gradients, weights = compare(world_size, "none", one_rank)
    assert gradients > 1e-3
    assert weights > 1e-3


ADDED = """
from common.settings import strategies
strategies.SYNC_NAMES += ("mine",)
from common.options.command_line import parse_command_line
from PartTwo.strategies import STRATEGIES, create_strategy
STRATEGIES["mine"] = STRATEGIES["all-reduce"]
settings, _ = parse_command_line("PartTwo", ["--num-nodes", "1", "--sync", "mine"])
print(settings.sync[0], type(create_strategy("mine")).__name__)
"""


def test_the_command_line_knows_the_strategies_that_there_are():
    assert {*SYNC_NAMES, *LOCAL_SYNC_NAMES} == set(STRATEGIES)
    assert set(VIRTUAL_SYNC_NAMES) == set(ON_VIRTUAL_NODES)


def test_a_name_and_a_row_are_all_that_a_new_strategy_needs():
    done = subprocess.run([sys.executable, "-c", ADDED], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "mine Flat\n", done.stderr


def averaged(strategy: str, gradients: Sequence[Tensor], options: SyncOptions = DEFAULTS):
    """The strategy, and the gradients of parameters that lie in memory as `gradients` do."""
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(g)) for g in gradients])
    sync = create_strategy(strategy, options)
    optimizer = torch.optim.SGD(model.parameters())
    sync.prepare(model, optimizer)
    recorder = Recorder(optimizer)
    sum((p * g).sum() for p, g in zip(model, gradients, strict=True)).backward()
    sync.average([p.grad for p in model])
    optimizer.step()
    sync.settle()
    return sync, [recorder.last[p] for p in model]


def sent(strategy: str, wire: str) -> int:
    sync, _ = averaged(strategy, [torch.ones(600), torch.ones(20, 20)], SyncOptions(wire=wire))
    return sync.bytes_sent


PAYLOAD, USED = 4 * 1000, 3  # bytes: of the gradients; and of who has one, around a ring


@pytest.mark.parametrize("strategy, expected", [
    ("gather-scatter", [3 * PAYLOAD, *[PAYLOAD] * 3]), ("all-reduce", [PAYLOAD * 3 // 2] * 4)])
def test_counts_the_bytes_that_each_rank_sends(strategy, expected):
    assert run_ranks(4, sent, strategy, "float32") == [each + USED for each in expected]


@pytest.mark.parametrize("strategy", SYNC_NAMES)
def test_no_strategy_counts_fewer_bytes_than_a_mean_takes(strategy):
    """The gradients of all but one of four ranks must leave them, and the mean must reach them."""
    assert sum(run_ranks(4, sent, strategy, "float32")) >= 2 * 3 * PAYLOAD + 4 * USED


def mean_of_signed_zeros(strategy: str) -> list[bool]:
    """Element k is -0 on the ranks whose bit is set in k, and 0 elsewhere; which means are -0."""
    signs = torch.arange(8) >> dist.get_rank() & 1
    gradient = torch.where(signs == 1, -0.0, 0.0).view(2, 4)
    _, [mean, _] = averaged(strategy, [gradient, torch.ones(3)])
    return mean.flatten().signbit().tolist()


@pytest.mark.parametrize("strategy", SYNC_NAMES)
def test_the_mean_of_minus_zeros_is_minus_zero_and_of_others_zero(strategy):
    """Sums have these signs; a sum that begins with a buffer of zeros has another bit."""
    assert run_ranks(3, mean_of_signed_zeros, strategy) == [[False] * 7 + [True]] * 3


def averaged_mixed_layouts(strategy: str) -> Tensor:
    gradient = torch.arange(48.0).view(2, 3, 2, 4) + dist.get_rank()
    if dist.get_rank() == 1:
        gradient = gradient.to(memory_format=torch.channels_last)
    return averaged(strategy, [gradient])[1][0].contiguous()


@pytest.mark.parametrize("strategy", [name for name in SYNC_NAMES if name not in OVERLAPPING])
def test_memory_format_may_differ_between_ranks(strategy):
    for result in run_ranks(2, averaged_mixed_layouts, strategy):
        assert torch.equal(result, torch.arange(48.0).view(2, 3, 2, 4) + 0.5)
