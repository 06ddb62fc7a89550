"""The checkpoints that a run writes: when, and which of them stay.

    --checkpoint-every 100    --checkpoint-every 10min
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from common.cluster.node import Node
from common.core.collectives import gather_to_leader, share_leaders_buffers
from common.core.events import read_events
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint_file, checkpoint_folder
from common.run.run_end import best_epoch
from common.run.run_log import RunLog
from common.run.save_clock import SaveClock
from common.run.state import State
from common.settings.settings import Settings
from common.step.gradient_sync import GradientSync

KEPT_CHECKPOINTS = 2


@dataclass
class Checkpoints:
    """Writes to `folder`, on the leader. Every rank has one, and must call its methods together.

    `constants` are what every checkpoint of the run holds: its settings, what it ran on, the digest
    of its data, and what a sample is like. The last `kept` stay, and the best epoch's; None keeps
    all.
    """

    folder: Path
    node: Node
    log: RunLog
    constants: dict[str, Any] = field(default_factory=dict)
    every: int = 0
    clock: SaveClock = field(default_factory=SaveClock)
    kept: int | None = KEPT_CHECKPOINTS
    last: Path | None = None

    @property
    def best(self) -> Path:
        """Where the best epoch's stands, if there is a validation set."""
        return self.folder / checkpoint_folder.BEST

    def where_the_best_is(self, losses: list[float]) -> str:
        """A clause on the best epoch's checkpoint; "" where it is not, or on another node's disk.

        Call before the epoch of the last of `losses` is saved.
        """
        is_here = self.node.world.is_leader and (best_epoch(losses) == len(losses)
                                                 or self._is_best_of(losses))
        return f", kept in {self.best}" if is_here else ""

    def _is_best_of(self, losses: list[float]) -> bool:
        """Returns True if the best epoch's file is of a run with these validation losses."""
        return bool(losses) and (checkpoint_file.peek(self.best).get("validation_losses")
                                 == losses[:best_epoch(losses)])

    def is_due(self, step: int, agree: bool) -> bool:
        """Returns True if it is time to save after `step` steps.

        The clock is read where the replicas `agree`: no rank ends such a step without the leader.
        """
        by_clock = agree and self.clock.is_due(step)
        return by_clock or bool(self.every and step % self.every == 0)

    def save(self, model: nn.Module, optimizer: Optimizer, gradient_sync: GradientSync,
             state: State, is_last: bool) -> None:
        """Saves a run where it stands, at the end of an epoch also as the best if it is.

        A disk that does not take it draws a warning, and the checkpoint before stays; when it
        `is_last` it raises CheckpointError.
        """
        totals = state.all_totals(self.node)
        self.node.progress.phase = "saving"
        begun = time.perf_counter()
        if gradient_sync.replicas_agree:
            gradient_sync.settle()
        share_leaders_buffers(model)
        rank_state = [gather_to_leader(tensor) for tensor in gradient_sync.state()]
        path = self.folder / checkpoint_folder.file_name(state.position)
        try:
            if self.node.world.is_leader:
                self._write(path, checkpoint_file.pack(
                    model, optimizer, state.position, totals.means()[0], totals=totals.as_json(),
                    validation_losses=state.validation_losses, rank_state=rank_state,
                    loss_scale=state.loss_scale.state(), **self.constants), _is_best(state))
            self.last = path
            self._tell(path, state.position, round(time.perf_counter() - begun, 6))
        except CheckpointError as error:
            if is_last:
                raise
            self.log.note(f"warning: {error}; training goes on, and the last good checkpoint is "
                          f"{self.last or 'none'}")
        self.node.stop.saved()
        self.clock.saved()

    def leave_other_line(self, state: State, settings: Settings) -> None:
        """Puts aside what is of another line of training than a run that goes on at `state`.

        That is what is ahead of it, and a best epoch's that is not the run's own. On the leader.
        """
        others = checkpoint_folder.ahead_of(
            self.folder / checkpoint_folder.file_name(state.position))
        if self.best.is_file() and not (self._is_best_of(state.validation_losses)
                                        or self._is_next_best(state.validation_losses, settings)):
            others.append(self.best)
        checkpoint_folder.put_aside(others)

    def _is_next_best(self, losses: list[float], settings: Settings) -> bool:
        """Returns True if a run that goes on after `losses` will reach the best epoch's file again.

        A run that was killed between the two files of a save has left it ahead of the other.
        """
        best = checkpoint_file.peek(self.best)
        return (best.get("validation_losses", [])[:len(losses)] == losses
                and best.get("data") == self.constants["data"]
                and not settings.changes_since(best.get("settings", {})))

    def finish_save(self, source: Path, position: Position) -> None:
        """Does what a kill left undone after `source` was written, if so. Every rank must call."""
        path = self.folder / checkpoint_folder.file_name(position)
        if path.resolve() != source.resolve():
            return  # it was resumed from a file that this run did not save
        if all(event["file"] != path.name
               for event in read_events(self.log.metrics_path, "checkpoint")):
            self._tell(path, position, None)
        if self.node.world.is_leader and self.kept is not None:
            checkpoint_folder.drop_older(path, self.kept)

    def _tell(self, path: Path, position: Position, seconds: float | None) -> None:
        self.log.event("checkpoint", file=path.name, position=list(position), seconds=seconds)

    def _write(self, path: Path, contents: dict[str, Any], is_best: bool) -> None:
        if is_best:  # first: a run that is killed in between is resumed before both
            checkpoint_file.write(self.best, contents)
        checkpoint_file.write(path, contents)
        self.node.note_saved(str(path))
        if self.kept is not None:
            checkpoint_folder.prune(path, self.kept)


def _is_best(state: State) -> bool:
    losses = state.validation_losses
    return state.position.iteration == 0 and bool(losses) and best_epoch(losses) == len(losses)
