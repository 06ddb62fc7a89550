"""The checkpoints that a run writes: when, and which of them stay.

    --checkpoint-every 100 --checkpoint-minutes 10
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.cluster.process_group import Node
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint, checkpoint_folder
from common.run.run_log import RunLog
from common.run.save_clock import SaveClock

KEPT_CHECKPOINTS = 2


@dataclass
class Checkpoints:
    """Writes to `folder`, on the leader. Every rank has one, and must call its methods together.

    `constants` are what every checkpoint of the run holds: its settings, what it ran on, and the
    digest of its data. The last `kept` stay, and the best epoch's; None keeps all.
    """

    folder: Path
    node: Node
    log: RunLog
    constants: dict[str, Any] = field(default_factory=dict)
    every: int | None = None
    clock: SaveClock = field(default_factory=SaveClock)
    kept: int | None = KEPT_CHECKPOINTS
    last: Path | None = None

    @property
    def best(self) -> Path:
        """Where the best epoch's stands, if there is a validation set."""
        return self.folder / checkpoint_folder.BEST

    def is_due(self, step: int, agree: bool) -> bool:
        """Whether to save, now that `step` steps are done.

        The clock is read where the replicas `agree`: no rank ends such a step without the leader.
        """
        by_clock = agree and self.clock.is_due(step)
        return by_clock or bool(self.every and step % self.every == 0)

    def save(self, position: Position, contents: Callable[..., dict[str, Any]], is_best: bool,
             is_last: bool) -> None:
        """Writes `contents(**constants)`, and once more as the best if it `is_best` of the epochs.

        A disk that does not take it draws a warning, and the checkpoint before stays; when it
        `is_last` it raises CheckpointError.
        """
        begun = time.perf_counter()
        path = self.folder / checkpoint_folder.file_name(position)
        try:
            if self.node.world.is_leader:
                self._write(path, contents(**self.constants), is_best and position.iteration == 0)
            self.last = path
            self.log.event("checkpoint", file=path.name,
                           seconds=round(time.perf_counter() - begun, 6))
        except CheckpointError as error:
            if is_last:
                raise
            self.log.note(f"warning: {error}; training goes on, and the last good checkpoint is "
                          f"{self.last or 'none'}")
        self.node.stop.saved()
        self.clock.saved()

    def _write(self, path: Path, contents: dict[str, Any], is_best: bool) -> None:
        checkpoint.write(path, contents)
        if is_best:
            checkpoint.write(self.best, contents)
        self.node.note_saved(str(path))
        if self.kept is not None:
            checkpoint_folder.prune(path, self.kept)
