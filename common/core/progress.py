"""Where a run is: the position between two steps, and the phase a process is in."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PHASES = ("data", "forward", "backward", "sync", "update")
PHASES_AFTER_A_STEP = ("checking", "totals", "saving", "evaluation")
CONNECTING = "connecting to the other ranks"
FINISHED = "finished"


class Position(NamedTuple):
    """The next global batch to be trained on: epochs count from 1, iterations from 0.

    `step` counts all iterations since the run began.
    """

    epoch: int = 1
    iteration: int = 0
    step: int = 0

    def after_one_more(self, iterations_per_epoch: int) -> "Position":
        if self.iteration + 1 == iterations_per_epoch:
            return Position(self.epoch + 1, 0, self.step + 1)
        return Position(self.epoch, self.iteration + 1, self.step + 1)

    def __str__(self) -> str:
        return f"epoch {self.epoch} iteration {self.iteration}"


def slowest_phase(seconds: Mapping[str, float]) -> tuple[str, float]:
    """The phase that took longest, and its share of all."""
    phase = max(seconds, key=lambda name: seconds[name])
    return phase, seconds[phase] / (sum(seconds.values()) or 1.0)


@dataclass
class Progress:
    """Where a rank is. The main thread writes it, the watch publishes it."""

    epoch: int = 0
    iteration: int = 0
    phase: str = "start"
    has_stepped: bool = False  # from then on a rank may stay less long in one place
    run: int = 0  # counts this process's runs: Part Two has one a strategy, and epochs start anew
    saved: str | None = None  # the leader's last checkpoint; "" for none yet, None before a run
    log: Path | None = None  # the open run's JSON lines, where a failure is to be noted too
    mark: str = ""  # what error lines begin with, where ranks share a terminal

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """The phase is `phase` in the block, and afterwards the one before."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

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


@functools.cache
def process_progress() -> Progress:
    """The one Progress of this process."""
    return Progress()
