"""A few steps of the training loop that are timed and leave nothing behind.

    turn = Turn(gradient_sync, settings, metric, steps=2)
    train(model, criterion, optimizer, loader, gradient_sync, turn); seconds, _ = turn.timer.take()
"""

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from common.core.metrics import Metric
from common.core.precision import Precision
from common.core.progress import Position
from common.data.loaders import Batch
from common.run.state import State
from common.settings.settings import Settings
from common.step.accumulation import Part, micro_batches
from common.step.gradient_sync import GradientSync
from common.step.phase_timer import PhaseTimer
from common.step.readings import Readings
from common.step.schedules import create_schedule
from studies.choosing.ready_times import ReadyTimes


class Turn:
    """Replaces the training loop's run: it times `steps` steps, and writes nothing.

    With `ready` it also notes when backward has each gradient.
    """

    def __init__(self, gradient_sync: GradientSync, settings: Settings, metric: Metric, steps: int,
                 ready: ReadyTimes | None = None) -> None:
        self.settings, self.precision = settings, Precision(settings.precision)
        self.position, self.schedule = Position(), create_schedule(settings, steps)
        self.metric, self.timer, self.state = metric, PhaseTimer(), State()
        self._gradient_sync, self._steps, self._ready = gradient_sync, steps, ready
        self._ready_at: list[list[float]] = []
        gradient_sync.waiting = partial(self.timer, "sync")

    @property
    def ready_at(self) -> list[float]:
        """Seconds from the beginning of backward to each gradient, medians; [] without `ready`."""
        return [median(each) for each in zip(*self._ready_at, strict=True)]

    def epochs(self) -> Iterator[int]:
        """Yields one epoch."""
        yield 1

    def iterations(self) -> Iterator[int]:
        """Counts the steps to time."""
        yield from range(self._steps)

    def passes(self, batch: Batch) -> Iterator[Part]:
        """Yields the whole batch at once."""
        self.readings = Readings(self.metric)
        for part, _ in micro_batches(batch, 1):
            yield part

    def finish_step(self, *_: Any) -> None:
        """Records when backward had each gradient ready, if asked to."""
        if self._ready:
            self._ready_at.append(self._ready.take())

    def finish_epoch(self, epoch: int) -> None:
        """Ends the turn: all weights are updated."""
        with self.timer("sync"):
            self._gradient_sync.settle()

    def save(self) -> None:
        """Does nothing: a turn is not saved."""

    def stop_if_asked(self) -> None:
        """Does nothing: a signal ends the whole measurement."""
