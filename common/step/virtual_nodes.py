"""The same bits on any number of ranks: V shards, whose gradients are added in one fixed tree.

    python3 PartOne/main.py --virtual-nodes 4

Floating-point sums depend on the order of their summands. Here the order is a binary tree over the
shards of the global batch, whoever computes them: a rank adds the subtrees whose shards it has,
and their sums travel. a + b is b + a to the bit, so nothing else matters. (The idea that a run is
one of virtual nodes: VirtualFlow, Or et al., 2022, arXiv:2009.09523; to the bit: EasyScale, Li et
al., 2023, arXiv:2208.14228.)
"""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.data.epoch_plan import ShardRange, shard_range
from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync
from common.step.shared_gradients import Used, require_known, trained_alike


class Subtree(NamedTuple):
    """The `number`-th, from 0, of the 2**depth subtrees at `depth`."""

    depth: int = 0
    number: int = 0


ROOT = Subtree()
Sums = MutableMapping[Subtree, Tensor]


class ShardTree(NamedTuple):
    """The binary tree over `shards` shards, of which `ranks` ranks compute contiguous ranges.

    The subtrees at depth k are the ranges of 2**k ranks. So on 2, 4, 8 … ranks each has one subtree
    to send, and on other numbers at most 2 log2(shards) of them.
    """

    shards: int
    ranks: int = 1

    def within(self, subtree: Subtree) -> ShardRange:
        """The shards of a subtree; of the tree's 2**depth subtrees some are empty."""
        return shard_range(subtree.number, 2 ** subtree.depth, self.shards)

    def leaf(self, shard: int) -> Subtree:
        """The subtree that is one shard alone."""
        subtree = ROOT
        while self.within(subtree).size > 1:
            left, right = _halves(subtree)
            subtree = left if shard < self.within(left).end else right
        return subtree

    def subtrees(self, rank: int, within: Subtree = ROOT) -> list[Subtree]:
        """The largest subtrees that lie wholly in the rank's shards, from left to right."""
        mine, here = shard_range(rank, self.ranks, self.shards), self.within(within)
        if here.end <= mine.first or mine.end <= here.first:
            return []
        if mine.first <= here.first and here.end <= mine.end:
            return [within]
        return [each for half in _halves(within) for each in self.subtrees(rank, half)]

    def all_subtrees(self) -> list[Subtree]:
        """The subtrees of all ranks, in the order of the ranks."""
        return [each for rank in range(self.ranks) for each in self.subtrees(rank)]

    def put(self, sums: Sums, subtree: Subtree, value: Tensor) -> None:
        """Adds a subtree's sum to `sums`, which its left neighbours' are in; adds up what it can.

        In place: into the left one of two summands.
        """
        while subtree.number % 2 and (left := Subtree(subtree.depth, subtree.number - 1)) in sums:
            value = sums.pop(left).add_(value)
            subtree = Subtree(subtree.depth - 1, subtree.number // 2)
        sums[subtree] = value

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """The mean over all shards, of the sums of `all_subtrees`; written to the first of them."""
        sums: Sums = {}
        for subtree, value in zip(self.all_subtrees(), values, strict=True):
            self.put(sums, subtree, value)
        return sums[ROOT].div_(self.shards)


def _halves(subtree: Subtree) -> list[Subtree]:
    return [Subtree(subtree.depth + 1, 2 * subtree.number + side) for side in range(2)]


class VirtualNodes(GradientSync):
    """The mean over `shards` shards; this one is for one rank, which computes them all.

    Every shard has a backward pass of its own, all but the last within `no_sync`. A parameter that
    only some shards have a gradient of counts with zeros on the others; one that none has keeps
    none.
    """

    def __init__(self, shards: int, rank: int = 0, ranks: int = 1) -> None:
        self.tree = ShardTree(shards, ranks)
        self._first = shard_range(rank, ranks, shards).first
        self._mine = self.tree.subtrees(rank)
        self._sums: dict[Tensor, Sums] = {}
        self._used: set[Tensor] = set()

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Every rank must call it. Raises RanksDisagree where other parameters are trained."""
        self._sums = {each: {} for each in trained_alike(model)}

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield
        for parameter in self._sums:
            self._add(parameter, parameter.grad)
            parameter.grad = None

    def _add(self, parameter: Tensor, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._used.add(parameter)
        sums = self._sums[parameter]
        shard = self._first + sum(self.tree.within(each).size for each in sums)
        self.tree.put(sums, self.tree.leaf(shard),
                      torch.zeros_like(parameter) if gradient is None else gradient)

    def sums(self, parameter: Tensor, gradient: Tensor | None) -> list[Tensor]:
        """This rank's sums for a parameter, given its last shard's gradient; once a step.

        They are those of its subtrees, of the parameter's shape.
        """
        self._add(parameter, gradient)
        sums, self._sums[parameter] = self._sums[parameter], {}
        return [sums[each] for each in self._mine]

    def all_sums(self) -> list[tuple[Tensor, ...]]:
        """This rank's sums for all parameters, by subtree: call after the last shard's backward.

        Raises NotFinite.
        """
        by_subtree = list(zip(*(self.sums(each, each.grad) for each in self._sums), strict=True))
        for sums in by_subtree:
            require_finite(sums, parameters=list(self._sums))
        return by_subtree

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Gives each parameter the mean over all shards as its gradient, if any shard has one."""
        require_known(gradients, list(self._sums))
        by_subtree = self.all_sums()
        used = self.used_anywhere()
        self.bytes_sent += used.bytes_sent
        self._average_sums(by_subtree)
        for parameter, mean in zip(self._sums, by_subtree[0], strict=True):
            parameter.grad = mean
        used.drop()

    def _average_sums(self, by_subtree: Sequence[Sequence[Tensor]]) -> None:
        """Leaves the means in the first subtree's sums."""
        for value in by_subtree[0]:
            self.tree.mean([value])

    def used_anywhere(self) -> Used:
        """Flags of the parameters with a gradient in any shard; call after the step's last sums."""
        used = Used(list(self._sums), [each in self._used for each in self._sums])
        self._used.clear()
        return used


def sync_of_one_rank(shards: int | None) -> GradientSync:
    """The seam where there is nobody to average with: of virtual nodes' shards, or of one."""
    return VirtualNodes(shards) if shards else GradientSync()
