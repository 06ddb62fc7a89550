"""The run of a user's script that calls common/assignment.py, on disk.

    python3 scripts/compare.py logs        # finds it as it finds the runs of our own programs
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.cluster.board import is_broken_collective
from common.core.failures import first_line
from common.core.progress import Position, process_progress
from common.model.batch_norm import has_batch_norm
from common.run.run import Run, ran_on
from common.run.sentinel import Sentinel
from common.witnessing.observer import Observer


class AtEpochEnds(Sentinel):
    """The witness, in place of a run's sentinel (which knows the order of the samples)."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def note(self, at: Position, indices: Any) -> None:
        """Does nothing: the witness has hooks of its own."""

    def is_due(self) -> bool:
        return False

    def check(self, position: Position) -> None:
        """Compares the ranks. Every rank must call it."""
        if self._observer is not None:
            self._observer.compare("epoch")


@contextmanager
def recorded(run: Run) -> Iterator[None]:
    """Logs how training began and how it ended, for scripts/status.py."""
    log, progress = run.log, process_progress()
    log.begin(world_size=run.node.world.size, settings=run.settings.as_json(),
              position=run.position, iterations_per_epoch=run.iterations_per_epoch,
              ran_on=ran_on(run.name, run.node, run.settings, run.model),
              has_batch_norm=has_batch_norm(run.model))
    progress.log = log.metrics_path
    try:
        yield
    except Exception as error:
        if not is_broken_collective(error):  # then the watch finds out why, and notes it
            log.event("failed", why=first_line(error), exit_code=getattr(error, "exit_code", 1))
            progress.log = None
        raise
    log.event("end")
    progress.log = None


def metrics_path(logs_path: Path, rank: int) -> Path:
    """The path of a rank's JSON lines beside its timing log, where our scripts find the run.

    For logs_rankR.txt, as our own runs have it, in the same folder; for any other name in a folder
    of that name, without the rank: logs/ddp_rank1.txt has logs/ddp/metrics_rank1.jsonl.
    """
    name = re.sub(rf"[_.-]?(rank|node)?[_.-]?{rank}$", "", logs_path.stem, flags=re.IGNORECASE)
    folder = logs_path.parent if name in ("", "logs") else logs_path.parent / name
    return folder / f"metrics_rank{rank}.jsonl"
