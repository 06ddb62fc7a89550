"""Where a step's time goes: data, forward, backward, sync, update.

    with timer("forward"):
        outputs = model(inputs)
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from common.core.progress import PHASES, Progress


class PhaseTimer:
    """Adds up wall seconds per named phase of one step, and tells `progress` which phase runs.

    A block within another counts as its own phase, and not as the outer one's. On a GPU a phase
    ends when the host has queued its work, unless `synchronize` waits for the device: then phases
    are true, and the step is a little slower. `mark` names a block for others, such as a profiler.
    """

    def __init__(self, progress: Progress | None = None,
                 synchronize: Callable[[], None] = lambda: None,
                 mark: Callable[[str], AbstractContextManager] = nullcontext) -> None:
        self._progress = progress or Progress()
        self._synchronize = synchronize
        self._mark = mark
        self._running: str | None = None
        self.begin()

    def begin(self) -> None:
        """A step begins: all seconds count from now."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._begun = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the block as `phase`; also when the block raises."""
        outer, shown = self._running, self._progress.phase
        self._progress.phase = self._running = phase
        start = time.perf_counter()
        try:
            with self._mark(phase) if outer is None else nullcontext():
                yield
                if outer is None:
                    self._synchronize()
        finally:
            seconds = time.perf_counter() - start
            self.seconds[phase] += seconds
            if outer is not None:
                self.seconds[outer] -= seconds
            self._progress.phase = f"after {phase}" if outer is None else shown
            self._running = outer

    def take(self) -> tuple[float, dict[str, float]]:
        """The seconds of the step so far: in all, and of each phase; rounded to microseconds."""
        duration = time.perf_counter() - self._begun
        return duration, {phase: round(each, 6) for phase, each in self.seconds.items()}
