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

    On a GPU a phase ends when the host has queued its work, unless `synchronize` waits for the
    device: then phases are true, and the step is a little slower. `mark` names a block for others,
    such as a profiler.
    """

    def __init__(self, progress: Progress | None = None,
                 synchronize: Callable[[], None] = lambda: None,
                 mark: Callable[[str], AbstractContextManager] = nullcontext) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._progress = progress or Progress()
        self._synchronize = synchronize
        self._mark = mark
        self._running: str | None = None

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the block as `phase`; also when the block raises."""
        self._progress.phase = self._running = phase
        start = time.perf_counter()
        try:
            with self._mark(phase):
                yield
                self._synchronize()
        finally:
            self.seconds[phase] += time.perf_counter() - start
            self._progress.phase, self._running = f"after {phase}", None

    @contextmanager
    def instead(self, phase: str) -> Iterator[None]:
        """Within a block that is timed as another phase: counts this part as `phase`'s."""
        outer, shown = self._running, self._progress.phase
        self._progress.phase = phase
        start = time.perf_counter()
        try:
            yield
        finally:
            if outer is not None:
                seconds = time.perf_counter() - start
                self.seconds[phase] += seconds
                self.seconds[outer] -= seconds
            self._progress.phase = shown

    def take(self) -> dict[str, float]:
        """The seconds of each phase since the last call, rounded to microseconds; starts anew."""
        taken = {phase: round(seconds, 6) for phase, seconds in self.seconds.items()}
        self.seconds = dict.fromkeys(PHASES, 0.0)
        return taken
