"""A turn of benchmarks/peers.py: its settings and its step times."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """One contestant's turn: `steps` timed training steps after two that warm up."""

    workload: str
    data_dir: Path
    batch_size: int
    steps: int
    precision: str = "float32"
    device: str = "cpu"

    @property
    def ticks(self) -> int:
        """How many steps the clock must see end."""
        return WARM_UP + self.steps


@dataclass
class StepClock:
    """Told when a step ends. Before the first timed one, and after the last, it waits for a GPU."""

    job: Job
    ends: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """A step has ended, all that belongs to it included. Ticks past the last are ignored."""
        if self.is_done:
            return
        if self.job.device != "cpu" and len(self.ends) + 1 in (WARM_UP, self.job.ticks):
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    @property
    def is_done(self) -> bool:
        return len(self.ends) == self.job.ticks

    def seconds(self) -> list[float]:
        """Wall seconds of each timed step, from the end of the one before it."""
        timed = self.ends[WARM_UP - 1:]
        return [after - before for before, after in zip(timed, timed[1:], strict=False)]
