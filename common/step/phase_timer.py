"""Where a step's time goes: data, forward, backward, sync, update.

    with timer("forward"):
        outputs = model(inputs)
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from common.core.progress import PHASES, Progress


class HostMoment:
    """Now, by the clock of the host."""

    def __init__(self) -> None:
        self._seconds = time.perf_counter()

    def until(self, end: Any) -> float:
        """Seconds to a later one."""
        return end._seconds - self._seconds


class GpuMoment:
    """When the GPU of this process comes to what is queued next; nothing waits for it here."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def until(self, end: Any) -> float:
        """Seconds to a later one, when the GPU has come to it: waits for that."""
        end._event.synchronize()
        return self._event.elapsed_time(end._event) / 1000


def moments_of(device: torch.device) -> type[HostMoment] | type[GpuMoment]:
    """Returns the kind of time stamp that delimits a phase whose work `device` does."""
    return GpuMoment if device.type == "cuda" else HostMoment


class PhaseTimer:
    """Adds up wall seconds per named phase of one step, and tells `progress` which phase runs.

    A block within another counts as its own phase, and not as the outer one's. A phase lies between
    two `moment`s, which only `take` reads: a GPU is waited for once, at the step's end. `mark`
    names a block for others, such as a profiler.
    """

    def __init__(self, progress: Progress | None = None, moment: Callable[[], Any] = HostMoment,
                 mark: Callable[[str], AbstractContextManager] = nullcontext) -> None:
        self._progress = progress or Progress()
        self._moment = moment
        self._mark = mark
        self._running: str | None = None
        self.begin()

    def begin(self) -> None:
        """A step begins: all seconds count from now."""
        self._blocks: list[tuple[str, str | None, Any, Any]] = []
        self._begun = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the block as `phase`; also when the block raises."""
        outer, shown = self._running, self._progress.phase
        self._progress.phase = self._running = phase
        start = self._moment()
        try:
            with self._mark(phase) if outer is None else nullcontext():
                yield
        finally:
            self._blocks.append((phase, outer, start, self._moment()))
            self._progress.phase = f"after {phase}" if outer is None else shown
            self._running = outer

    def take(self) -> tuple[float, dict[str, float]]:
        """The seconds of the step so far: in all, and of each phase; rounded to microseconds."""
        totals = dict.fromkeys(PHASES, 0.0)
        for phase, outer, start, end in self._blocks:
            seconds = start.until(end)
            totals[phase] += seconds
            if outer is not None:
                totals[outer] -= seconds
        duration = time.perf_counter() - self._begun
        return duration, {phase: round(each, 6) for phase, each in totals.items()}
