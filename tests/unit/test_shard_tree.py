"""The order in which shards are added, whoever computes them.

Mutations that turn this red: equal parts (`place * (shards // places)`) in shard_range; in `put`
add to what stands last instead of the left neighbour, or never; `mine.first < here.first` in
subtrees; _check_settings without ran_on; no `part.shard` in the seed, or in what keeps buffers.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from common.core.failures import UsageError
from common.core.progress import Position
from common.data.epoch_plan import EpochPlan, shard_range
from common.options.command_line import parse_command_line
from common.run.resuming import _check_settings
from common.settings.settings import Settings
from common.step.accumulation import Part
from common.step.shard_scope import ShardScope
from common.step.virtual_nodes import ROOT, ShardTree
from tests.facts import says

MOST = 24


@dataclass
class Words:
    """A value that remembers how it was added up."""

    text: str

    def add_(self, other: "Words") -> "Words":
        return Words(f"({self.text}+{other.text})")

    def div_(self, parts: int) -> "Words":
        return Words(f"{self.text}/{parts}")


def added_up(shards: int, ranks: int) -> str:
    """The sum as `ranks` ranks form it, in words."""
    tree, sent = ShardTree(shards, ranks), []
    for rank in range(ranks):
        own, sums = shard_range(rank, ranks, shards), {}
        for shard in range(own.first, own.end):
            tree.put(sums, tree.leaf(shard), Words(str(shard)))
        assert list(sums) == tree.subtrees(rank)
        sent += sums.values()
    return tree.mean(sent).text


@pytest.mark.parametrize("shards", range(1, MOST + 1))
def test_any_number_of_ranks_adds_in_the_same_order(shards):
    assert {added_up(shards, ranks) for ranks in range(1, shards + 1)} == {added_up(shards, 1)}


def test_the_order_is_a_tree():
    assert added_up(4, 3) == "((0+1)+(2+3))/4"
    assert added_up(7, 2) == "(((0+1)+(2+3))+((4+5)+6))/7"


@pytest.mark.parametrize("shards", range(1, MOST + 1))
def test_ranges_are_even_and_have_no_gap(shards):
    for ranks in range(1, shards + 1):
        ranges = [shard_range(rank, ranks, shards) for rank in range(ranks)]
        assert [each.first for each in ranges] == [0, *(each.end for each in ranges[:-1])]
        assert ranges[-1].end == shards
        assert max(each.size for each in ranges) - min(each.size for each in ranges) <= 1


@pytest.mark.parametrize("shards", range(1, MOST + 1))
def test_what_a_rank_sends_is_one_sum_on_powers_of_two_and_few_elsewhere(shards):
    for ranks in range(1, shards + 1):
        most = max(len(ShardTree(shards, ranks).subtrees(rank)) for rank in range(ranks))
        assert most <= (1 if ranks & (ranks - 1) == 0 else 2 * (shards - 1).bit_length())


def test_a_subtree_covers_its_shards_and_the_root_all():
    assert ShardTree(6).within(ROOT) == shard_range(0, 1, 6)
    assert ShardTree(6, 3).all_subtrees() == [(2, 0), (2, 1), (3, 4), (3, 5), (2, 3)]


def test_ranks_have_the_samples_of_their_shards():
    plan = EpochPlan(100, 33, seed=5)
    whole = [plan.samples_of(0, shard_range(shard, 7)).tolist() for shard in range(7)]
    for ranks in (1, 2, 3, 4):
        for rank in range(ranks):
            own = shard_range(rank, ranks, 7)
            assert plan.samples_of(0, own).tolist() == sum(whole[own.first:own.end], [])


TWO = ["-M", "10.0.0.1", "-N", "2", "-R", "0", "--virtual-nodes"]


@pytest.mark.parametrize("flags, facts", [
    (["1"], ["--virtual-nodes", 1, "2 ranks"]),
    (["4", "--sync", "all-reduce-per-tensor"],
     ["--virtual-nodes", 4, "all-reduce-per-tensor", "gather-scatter, all-reduce"]),
    (["4", "--sync", "reduce-scatter,local-sgd:5"], ["--virtual-nodes", 4, "--sync local-sgd"]),
    (["4", "--wire", "bf16"], ["--virtual-nodes", 4, "--wire float32", "bf16"]),
    (["4", "--accumulate", "2"], ["--virtual-nodes", 4, "--accumulate 2"]),
    (["300"], ["--batch-size", 256, "300 virtual nodes"]),
])
def test_what_does_not_go_with_virtual_nodes_is_one_sentence(flags, facts):
    with pytest.raises(UsageError) as refused:
        parse_command_line("PartTwo", [*TWO, *flags])
    assert says(refused.value, *facts)


def test_model_split_does_not_go_with_virtual_nodes():
    with pytest.raises(UsageError) as refused:
        parse_command_line("PartThree", [*TWO, "4", "--parallel", "model-split"])
    assert says(refused.value, "--virtual-nodes", 4, "--parallel ddp", "model-split")


def test_threads_decide_what_is_learned_on_virtual_nodes_in_native_arithmetic_alone():
    plain, _ = parse_command_line("PartTwo", [*TWO[:-1], "--threads", "2"])
    portable, _ = parse_command_line("PartTwo", [*TWO, "4", "--threads", "2"])
    for each in plain, portable:
        assert "threads" not in each.shared() and "threads" not in each.trajectory()
    native = [*TWO, "4", "--arithmetic", "native"]
    virtual, _ = parse_command_line("PartTwo", native)
    assert virtual.threads == virtual.shared()["threads"] == virtual.trajectory()["threads"] == 1
    assert parse_command_line("PartTwo", [*native, "--threads", "2"])[0].threads == 2
    assert parse_command_line("PartTwo", [*TWO, "4"])[0].threads is None


def test_a_run_on_virtual_nodes_goes_on_with_its_versions_and_convolutions():
    ran_on = {"torch": "2.14", "convolutions": "library", "instructions": "AVX2", "threads": 1,
              "pooling": "first"}
    now = {"data": "d", "ran_on": {**ran_on, "torch": "2.15", "convolutions": "winograd-4",
                                   "instructions": "AVX512"}}
    virtual = Settings(virtual_nodes=4, threads=1)
    before = {"settings": virtual.as_json(), "data": "d", "ran_on": ran_on}
    with pytest.raises(UsageError) as refused:
        _check_settings(before, virtual, now)
    assert says(refused.value, "convolutions", "library", "winograd-4", "torch", 2.14, 2.15)
    assert "AVX" not in str(refused.value)
    assert _check_settings({**before, "settings": Settings().as_json()}, Settings(), now) == []


def test_each_shard_draws_numbers_of_its_own_and_only_the_first_moves_buffers():
    layer, at = nn.BatchNorm1d(2), Position(1, 3)
    scope = ShardScope(layer, Settings(virtual_nodes=4))
    drawn, means = [], []
    for shard in (1, 0, 1):
        with scope.of(at, Part(torch.ones(4, 2), torch.zeros(4), 1.0, None, shard)):
            drawn.append(torch.rand(3).tolist())
            layer(torch.full((4, 2), 5.0))
        means.append(layer.running_mean.tolist())
    assert drawn[0] == drawn[2] != drawn[1]
    assert means == [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
