"""Where a step's time goes: data, forward, backward, sync, update.

    with timer("forward"):
        outputs = model(inputs)
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

PHASES = ("data", "forward", "backward", "sync", "update")
PHASES_AFTER_A_STEP = ("checking", "totals", "saving", "evaluation")
FINISHED = "finished"


def dearest_phase(seconds: Mapping[str, float]) -> tuple[str, float]:
    """The phase that took longest, and its share of all."""
    phase = max(seconds, key=lambda name: seconds[name])
    return phase, seconds[phase] / (sum(seconds.values()) or 1.0)


@dataclass
class Progress:
    """Where a rank is. The main thread writes it, the watch publishes it."""

    epoch: int = 0
    iteration: int = 0
    phase: str = "start"
    settled: bool = False
    """True once a first step has ended: from then on the shorter patience applies."""
    run: int = 0
    """Counts the runs of this process: Part Two has one a strategy, and epochs start anew."""
    saved: str | None = None
    """The leader's last good checkpoint: "" when there is none yet, None before a run begins."""
    log: Path | None = None
    """The open run's JSON lines, where a failure is to be noted too."""

    def place(self) -> str:
        """In words: "at epoch 1 iteration 137", or "during start"."""
        if self.epoch == 0:
            return f"during {self.phase}"
        return f"at epoch {self.epoch} iteration {self.iteration} ({self.phase})"

    def order(self) -> tuple[int, ...]:
        """Sorts ranks by how far they have come."""
        phase = self.phase.removeprefix("after ")
        every = PHASES + PHASES_AFTER_A_STEP
        place = 2 * every.index(phase) + (phase != self.phase) if phase in every else -1
        # Evaluation counts batches of its own, after the epoch's last iteration.
        return (phase == FINISHED, self.run, self.epoch, phase == "evaluation", self.iteration,
                place)


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
