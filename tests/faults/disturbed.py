"""Runs of the literal mains, slowed down a little, to be disturbed in a chosen phase.

    with running(case, folder, "no") as programs:
        wait_for(folder, "training", 5)
        os.kill(programs[1].process.pid, signal.SIGSTOP)
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.ranks import Program, started
from tests.runs import Case, programs_of
from tests.workload import plant

PAUSE = 0.05
LONG_PAUSE = 0.5


def plant_phases(folder: Path, pause: float = PAUSE) -> None:
    """The small workload, whose phases each leave a file `at_PHASE_N` and then pause.

    N is the step in training, where a step takes `pause` seconds longer; else it counts, and the
    pause is a long one. "saving" is between writing and renaming.
    """
    from common import evaluation, setup
    from common.run import checkpoint_file, run

    plant()

    def mark(owner: Any, name: str, phase: str, number: Callable[..., int]) -> None:
        plain = getattr(owner, name)

        def marked(*arguments: Any, **more: Any) -> Any:
            (folder / f"at_{phase}_{number(*arguments)}").touch()
            time.sleep(pause if phase in ("training", "saving") else LONG_PAUSE)
            return plain(*arguments, **more)
        setattr(owner, name, marked)

    counts = iter(range(1000))
    mark(setup, "load_datasets", "start-up", lambda *_: 0)
    mark(run.Run, "finish_step", "training", lambda self, *_: self.position.step)
    mark(evaluation, "predict", "evaluation", lambda *_: 0)
    mark(checkpoint_file, "_verify", "saving", lambda *_: next(counts))


def wait_for(folder: Path, phase: str, number: int = 0, seconds: float = 60) -> None:
    """Returns when some rank is in that phase."""
    deadline = time.monotonic() + seconds
    while not (folder / f"at_{phase}_{number}").exists():
        assert time.monotonic() < deadline, f"no rank came to {phase} {number}"
        time.sleep(0.002)


@contextlib.contextmanager
def running(case: Case, folder: Path, resume: str = "no", pause: float = PAUSE,
            more: tuple[str, ...] = (), plants: dict[int, Callable[[], None]] | None = None,
            ) -> Iterator[list[Program]]:
    """The case's part on all its ranks, started; waits for them all at the end.

    `plants` replaces what is called first in a rank.
    """
    before = {rank: partial(plant_phases, folder, pause) for rank in range(case.world_size)}
    programs = programs_of(case, folder, resume, before | (plants or {}), more)
    with started([each.process for each in programs]):
        yield programs


def joined(programs: list[Program], seconds: float) -> tuple[list[int | None], float]:
    """Waits for the programs to end: their exit codes, and how many seconds the last one took."""
    begun = time.monotonic()
    for each in programs:
        each.process.join(max(0.01, begun + seconds - time.monotonic()))
    return [each.process.exitcode for each in programs], time.monotonic() - begun
