"""To the bit: any number of ranks and every strategy against one rank, on virtual nodes.

Mutations that turn this red: seed by rank in ShardScope; buffers moved by all shards; weights of
shards as floats (`weight * n / samples`); evaluation in shards of the test set instead of batches;
`loss` a float in Totals; ring all-reduce in OverlappedVirtual; gradients of another step, or of one
shard alone, kept in Wanted. The plants below are such mutations made on one rank alone, or
everywhere but on one.
"""

import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch.distributed as dist
from torch import nn

from common.arithmetic import products
from common.data.loaders import Loader
from common.settings.strategies import VIRTUAL_SYNC_NAMES
from common.step.shard_scope import ShardScope
from common.step.virtual_nodes import ShardTree
from PartTwo.strategies import SyncOptions, create_strategy
from studies.proof import bits
from studies.proof.strategies import Wiring, on_virtual_nodes
from studies.proof.trajectory import Problem
from tests.multiprocess.prove_cases import ROW, small_problem
from tests.small import SmallNet

STEPS = 4  # of 45 samples in batches of 16: the third has 13


def build_with_dropout(classes: int) -> nn.Module:
    """A model with torch's own dropout, whose masks come from the process's random numbers."""
    net = SmallNet(nn.BatchNorm2d)
    net.layers.insert(8, nn.Dropout(0.3))
    return net


def problem_on(nodes: int, precision: str = "float32", steps: int = STEPS) -> Problem:
    problem = small_problem(precision, "local", steps)
    return replace(problem, row=replace(ROW, build_model=build_with_dropout), settings=replace(
        problem.settings, batch_size=16, momentum=0.9, weight_decay=1e-3, virtual_nodes=nodes))


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("references")
    return {case: bits.BitReference.create(problem_on(*case), folder / f"{case}")
            for case in ((4, "float32"), (7, "bf16"))}


@pytest.mark.parametrize("case, ranks", [
    *(((4, "float32"), ranks) for ranks in (1, 2, 3, 4)),
    ((7, "bf16"), 3)], ids=str)  # where a rank has several sums to send
def test_every_strategy_has_the_bits_of_one_rank(case, ranks, references):
    reference = references[case]
    strategies = on_virtual_nodes(reference.problem.settings)
    assert set(strategies) == {*VIRTUAL_SYNC_NAMES, "ddp"}
    found = list(bits.compared(reference, strategies, [ranks]))
    assert [case.why for case in found] == [""] * len(strategies)
    assert {case.digest for case in found} == {reference.digest}
    assert all(not any(case.bits.values()) for case in found)


def wired(model: nn.Module, loader: Loader, nodes: int = 4) -> Wiring:
    options = SyncOptions(virtual_nodes=nodes)
    return Wiring(model, loader, create_strategy("reduce-scatter", options))


def another_tree(model: nn.Module, loader: Loader) -> Wiring:
    """((0 + 2) + (1 + 3)), on all ranks."""
    wiring = wired(model, loader)
    sync, mean = wiring.gradient_sync, wiring.gradient_sync._mean

    class Other(ShardTree):
        def mean(self, values):
            one, two, three, four = values
            return ((one + three) + (two + four)).div_(4)

    sync._mean = lambda rows, tree: mean(rows, Other(*tree))
    return wiring


def another_order_on_rank_1(model: nn.Module, loader: Loader) -> Wiring:
    """Rank 1 adds 4 + (5 + 6), where the tree has (4 + 5) + 6."""
    wiring = wired(model, loader, nodes=7)
    if dist.get_rank() == 1:
        tree = wiring.gradient_sync.tree

        class Other(ShardTree):
            def put(self, sums, subtree, value):
                if self.within(subtree).size > 1:
                    return super().put(sums, subtree, value)
                sums[subtree] = value
                if len(sums) == 3:
                    four, five, six = sums.values()
                    sums.clear()
                    sums.update({self.subtrees(1)[0]: four + (five + six)})

        wiring.gradient_sync.tree = Other(*tree)
    return wiring


def statistics_of_shard_1(model: nn.Module, loader: Loader) -> Wiring:
    plain = ShardScope.of

    @contextmanager
    def of(self, at, part):
        buffers = list(self._model.buffers())
        kept = [each.clone() for each in buffers]
        with plain(self, at, part):
            yield
            if part.shard == 1:
                kept = [each.clone() for each in buffers]
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)

    ShardScope.of = of
    return wired(model, loader)


def another_kernel_on_rank_1(model: nn.Module, loader: Loader) -> Wiring:
    """Rank 1's products round once, at the end."""
    if dist.get_rank() == 1:
        run = products.run

        def in_float64(name, tensors, sizes):
            if name.startswith("outer"):
                return run(name, tensors, sizes)
            left, right, made = tensors
            made.copy_(left.double() @ right.double())
            return True

        products.run = in_float64
    return wired(model, loader)


WEIGHT = r"\blayers\.\d+\.(weight|bias)\b.*\b\d+\b.*\[\d"
PLANTS: Mapping = {
    another_tree: (4, 4, rf"\bstep 1\b.*{WEIGHT}.*;.*\bmean\b"),
    another_order_on_rank_1: (7, 2, WEIGHT),
    statistics_of_shard_1: (4, 2, r"\brank 0\b.*\blayers\.1\.running_mean\b.*\b\d+\b"),
    another_kernel_on_rank_1: (4, 2, rf"\bstep 1\b.*{WEIGHT}.*;.*\brank 1\b.*\bshard 2\b"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_difference_is_named(plant, references):
    nodes, ranks, why = PLANTS[plant]
    case = references[nodes, {4: "float32", 7: "bf16"}[nodes]].compare("planted", plant, ranks)
    assert sum(case.bits.values()) > 0
    assert re.search(why, case.why), case.why
