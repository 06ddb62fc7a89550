"""A turn of benchmarks/peers.py: its settings, its step times and its peak memory."""

import time
from collections.abc import Iterator
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
    """Told when a step ends; after the last one it also looks at memory, while workers live.

    Before the first timed step, and after the last, it waits for a GPU to finish.
    """

    job: Job
    ends: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def tick(self) -> None:
        """A step has ended, all that belongs to it included. Ticks past the last are ignored."""
        if self.is_done:
            return
        on_gpu = self.job.device != "cpu"
        if on_gpu and len(self.ends) + 1 in (WARM_UP, self.job.ticks):
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        if self.is_done:
            self.peak_bytes = torch.cuda.max_memory_allocated() if on_gpu else peak_memory()

    @property
    def is_done(self) -> bool:
        return len(self.ends) == self.job.ticks

    def seconds(self) -> list[float]:
        """Wall seconds of each timed step, from the end of the one before it."""
        timed = self.ends[WARM_UP - 1:]
        return [after - before for before, after in zip(timed, timed[1:], strict=False)]


def peak_memory() -> int:
    """Bytes: this process's peak resident set, and its worker processes' private memory now.

    Pages that workers share with this process count once: a sum of resident sets would count the
    libraries again for each. Workers do the same all the time, so now is as good as their peak.
    """
    own = _kilobytes(Path("/proc/self/status"), ("VmHWM:",))
    return 1024 * (own + sum(_private_kilobytes(pid) for pid in _children()))


def _children() -> Iterator[str]:
    """The processes that any thread of this one has started and that still live."""
    for thread in Path("/proc/self/task").iterdir():
        yield from (thread / "children").read_text().split()


def _private_kilobytes(pid: str) -> int:
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), ("Private_Clean:", "Private_Dirty:"))


def _kilobytes(path: Path, names: tuple[str, ...]) -> int:
    rows = [line.split() for line in path.read_text().splitlines()]
    return sum(int(row[1]) for row in rows if row and row[0] in names)
