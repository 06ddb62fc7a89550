"""Makes a pass depend on its samples only, not on the rank that computes it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from common.core.progress import Position
from common.core.random_numbers import seed_all
from common.data.epoch_plan import mix
from common.model.dropout import DropoutPlan
from common.settings.settings import Settings
from common.step.accumulation import Part


class ShardScope:
    """Tells a model whose pass it is: the samples, and with --virtual-nodes the shard too.

    A virtual node draws random numbers of its own, and of all only that of shard 0 moves buffers
    (running batch statistics): they are the leader's, as the leader's count on N ranks.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._dropout = DropoutPlan(model, settings.seed)

    @contextmanager
    def of(self, at: Position, part: Part) -> Iterator[None]:
        """Around forward and backward of one part of the batch at `at`."""
        self.begin(at, part)
        if not self._settings.virtual_nodes:
            yield
            return
        before = [buffer.clone() for buffer in self._model.buffers() if part.shard]
        yield
        # after backward, for which autograd has saved the buffers
        for buffer, kept in zip(self._model.buffers(), before, strict=False):
            buffer.copy_(kept)

    def begin(self, at: Position, part: Part) -> None:
        """Makes dropout, and on virtual nodes all random numbers, those of the part."""
        self._dropout.set_samples(at.epoch, part.indices)
        if self._settings.virtual_nodes:
            seed_all(mix(self._settings.seed, at.epoch, at.iteration, part.shard))
