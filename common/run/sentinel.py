"""Checks during a run that replicas are equal and that every sample is used exactly once.

Every N steps the ranks exchange one row of whole numbers each: a checksum of every parameter, and a
fingerprint of the samples they have trained on. The first rank and tensor that differ are named.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from common.cluster.node import Node
from common.core.collectives import gather_rows
from common.core.failures import RanksDisagree
from common.core.progress import Position
from common.data.epoch_plan import EpochPlan, fingerprint, shard_range
from common.run.checksums import as_int64, checksums


class Sentinel:
    """Checks when `every` steps have passed, and at the end of an epoch or run; 0 is never.

    Every rank must have one. A check costs one pass over the parameters and one all-gather of 8
    bytes a tensor: 5 ms for VGG-11, so 0.01 % of the time at one second a step and every=50.
    """

    def __init__(self, model: nn.Module, plan: EpochPlan | None, node: Node,
                 every: int, virtual_nodes: int | None = None) -> None:
        self._model = model
        self._plan = plan
        self._node = node
        self._every = every
        self._virtual_nodes = virtual_nodes
        self._trained: list[tuple[Position, np.ndarray]] = []

    def note(self, at: Position, indices: np.ndarray | None) -> None:
        """Remembers the samples of the step at `at`. Every rank must call it after every step."""
        if self._every and indices is not None:
            self._trained.append((at, indices))

    def is_due(self) -> bool:
        """Returns True if a check is due; where weights may differ it waits until they agree."""
        return 0 < self._every <= len(self._trained)

    def check(self, position: Position) -> None:
        """Compares what has been done since the last check, if anything. Every rank must call it.

        `position` is the next one. Raises RanksDisagree naming the first rank with other samples or
        other weights.
        """
        if self._trained:
            self._compare(position)
            self._trained = []

    def _compare(self, position: Position) -> None:
        samples = fingerprint(np.concatenate([indices for _, indices in self._trained]))
        row = torch.cat([torch.tensor([as_int64(samples)], device=self._node.device),
                         checksums(list(self._model.parameters()))])
        rows = gather_rows(row).cpu()
        self._check_samples(rows[:, 0].tolist(), position)
        self._check_weights(rows[:, 1:], [name for name, _ in self._model.named_parameters()],
                            position)

    def _check_samples(self, indices: Sequence[int], position: Position) -> None:
        for rank, samples in enumerate(indices):
            planned = np.concatenate([
                self._plan_of(at.epoch).samples_of(at.iteration, shard_range(
                    rank, self._node.world.size, self._virtual_nodes))
                for at, _ in self._trained])
            if as_int64(fingerprint(planned)) != samples:
                raise RanksDisagree(
                    f"{self._name(rank)} has trained on other samples than its shard between "
                    f"{self._trained[0][0]} and {position}: its loader does not follow the plan")

    def _check_weights(self, rows: Tensor, names: list[str], position: Position) -> None:
        for rank in range(1, len(rows)):
            different = (rows[rank] != rows[0]).nonzero()
            if len(different):
                raise RanksDisagree(
                    f"{self._name(rank)} has other weights than rank 0 before {position}: "
                    f"{len(different)} of {len(names)} tensors differ, the first is "
                    f"{names[int(different[0])]} (--check-every 0 turns this check off)")

    def _plan_of(self, epoch: int) -> EpochPlan:
        assert self._plan is not None
        if self._plan.epoch != epoch:
            self._plan = self._plan.at(epoch)
        return self._plan

    def _name(self, rank: int) -> str:
        ranks = self._node.ranks
        return str(ranks[rank]) if ranks else f"rank {rank}"
