"""A run while it goes on: where it stands, what it logs, when it saves.

    for _ in run.iterations(): ...      # see common/training.py
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from common.cluster.process_group import Node
from common.core.collectives import gather_rows, gather_to_leader, share_leaders_buffers
from common.core.failures import CheckpointError
from common.core.precision import Precision
from common.core.progress import Position
from common.core.provenance import versions
from common.core.settings import Settings
from common.data.epoch_plan import mix
from common.model.convolutions import algorithms
from common.run import checkpoint, checkpoint_folder
from common.run.early_stopping import best_epoch, should_stop
from common.run.run_log import RunLog, Step, Totals
from common.run.save_clock import SaveClock
from common.run.sentinel import NoSentinel, Sentinel
from common.run.tracing import NoTracer
from common.step.gradient_sync import GradientSync, KeepLocal
from common.step.schedules import Schedule, create_schedule

KEPT_CHECKPOINTS = 2


@dataclass
class Run:
    """Where a run stands and what it leaves behind. Made by `open_run`; every rank has one.

    `name` is its folder's below --output-dir, such as "PartTwo/all-reduce". `position` is the next
    batch to train on, `totals` this rank's sums over the epoch so far, `data` the training set's
    digest, `validation_losses` one number an epoch, the same on all ranks. `gradient_sync` is asked
    what it remembers whenever the run is saved. The last `kept` checkpoints stay, and the best
    epoch's; None keeps all.
    """

    name: str
    folder: Path
    checkpoint_dir: Path
    settings: Settings
    node: Node
    log: RunLog
    iterations_per_epoch: int
    sentinel: Sentinel | NoSentinel = field(default_factory=NoSentinel)
    tracer: NoTracer = field(default_factory=NoTracer)
    clock: SaveClock = field(default_factory=SaveClock)
    position: Position = Position()
    totals: Totals = field(default_factory=Totals)
    last_checkpoint: Path | None = None
    data: str = ""
    gradient_sync: GradientSync = field(default_factory=KeepLocal)
    kept: int | None = KEPT_CHECKPOINTS
    validation_losses: list[float] = field(default_factory=list)

    @property
    def precision(self) -> Precision:
        return Precision(self.settings.precision)

    @property
    def schedule(self) -> Schedule:
        return create_schedule(self.settings, self.iterations_per_epoch)

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, the one that was interrupted first."""
        while not self._is_over():
            self.log.open_bar(self.position.epoch, self.position.step, self._last_step())
            yield self.position.epoch

    def iterations(self) -> Iterator[int]:
        """The iterations that are left of the current epoch; sets the random seed for each.

        Random numbers drawn in a step (dropout) depend on seed, position and rank alone, so a
        resumed run draws what the uninterrupted one drew.
        """
        epoch = self.position.epoch
        while self.position.epoch == epoch and not self._is_over():
            here, progress = self.position, self.node.progress
            progress.epoch, progress.iteration = here.epoch, here.iteration
            torch.manual_seed(mix(self.settings.seed, here.epoch, here.iteration,
                                  self.node.world.rank))
            self.node.stop.begin_step()
            self.tracer.before_step(here.step)
            yield here.iteration
            progress.has_stepped = True

    @property
    def is_last_step(self) -> bool:
        """Whether --max-iterations ends the run with the step at `position`."""
        return self.position.step + 1 == self._limit

    @property
    def looks_at_weights(self) -> bool:
        """Whether `finish_step` for the step at `position` will, or needs all ranks to be there.

        The weights have to be settled for it. (Saving settles them by itself: it may be asked for.)
        """
        done = self.position.step + 1
        return self.sentinel.is_due(more=1) or self.clock.is_look(done)

    @property
    def _limit(self) -> int | None:
        return 1 if self.settings.dry_run else self.settings.max_iterations

    def _is_over(self) -> bool:
        return (self.position.epoch > self.settings.epochs or self.stops_early
                or (self._limit is not None and self.position.step >= self._limit))

    @property
    def stops_early(self) -> bool:
        """Whether the validation losses so far end the run; the same on all ranks."""
        rule = self.settings.early_stopping
        return bool(rule) and should_stop(self.validation_losses, *rule)

    def _last_step(self) -> int:
        whole = self.settings.epochs * self.iterations_per_epoch
        return min(whole, self.settings.max_iterations or whole)

    def finish_step(self, step: Step, model: nn.Module, optimizer: Optimizer) -> None:
        """Logs the step, moves on to the next; checks and saves when that is due.

        Replicas are compared, and the clock is asked, after steps at whose end they agree.
        """
        self.log.step(step)
        self.totals.add(step.loss, step.correct, step.samples)
        self.position = self.position.after_one_more(self.iterations_per_epoch)
        self.node.progress.phase = "checking"
        together = self.gradient_sync.replicas_agree
        self.sentinel.note(step)
        if together and self.sentinel.is_due():
            self.sentinel.check(self.position, model)
        self.tracer.after_step(self.position.step)
        every, done = self.settings.checkpoint_every, self.position.step
        is_due = (together and self.clock.is_due(done)) or bool(every and done % every == 0)
        if is_due and self.position.iteration:
            self.save(model, optimizer, self._gathered_totals())
        if self.position.iteration:  # else finish_epoch comes next, and saves
            self._stop_if_asked(model, optimizer)

    def finish_epoch(self, epoch: int, model: nn.Module, optimizer: Optimizer,
                     validate: Callable[[], tuple[float, float, float | None] | None]) -> None:
        """Checks, logs the epoch's means over all ranks, and saves. Every rank must call it.

        After a whole epoch it calls `validate` for the mean loss and the accuracies on the
        validation set, if there is one.
        """
        self.sentinel.check(self.position, model)
        rows = self._gathered_totals()
        totals = Totals(*(sum(column) for column in zip(*rows, strict=True)))
        self.log.epoch(epoch, totals)
        is_best = False
        if self.position.epoch > epoch:
            self.totals, rows = Totals(), []
            if (validated := validate()) is not None:
                is_best = self._note_validation(epoch, *validated)
        self.save(model, optimizer, rows, totals.means()[0], is_best=is_best)
        self._stop_if_asked(model, optimizer)

    def _note_validation(self, epoch: int, mean_loss: float, accuracy: float,
                         mirrored_accuracy: float | None = None) -> bool:
        """Writes down how the epoch did on the validation set, and tells whether it is the best.

        The leader's loss counts for all, so that they decide alike whether to stop.
        """
        row = torch.tensor([mean_loss], dtype=torch.float64, device=self.node.device)
        losses = self.validation_losses
        losses.append(float(gather_rows(row)[0]))
        self.log.validation(epoch, losses[-1], accuracy, mirrored_accuracy=mirrored_accuracy)
        if self.stops_early:
            best = self.checkpoint_dir / checkpoint_folder.BEST
            self.log.note(f"stopped early after epoch {epoch}; the best was epoch "
                          f"{epoch - len(losses) + best_epoch(losses)} with a validation loss of "
                          f"{min(losses):.3f}, kept in {best}")
        return best_epoch(losses) == len(losses)

    def _stop_if_asked(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Ends the process here, with all saved, when a signal came and all ranks agreed on it."""
        if self.node.stop.boundary():
            if self.node.stop.needs_saving:
                self.save(model, optimizer, self._gathered_totals(), is_last=True)
            self.node.stop.end()

    def _gathered_totals(self) -> list[list[float]]:
        self.node.progress.phase = "totals"
        row = torch.tensor([self.totals.loss, self.totals.correct, self.totals.samples],
                           dtype=torch.float64, device=self.node.device)
        return gather_rows(row).tolist()

    def save(self, model: nn.Module, optimizer: Optimizer, totals: list[list[float]],
             loss: float = float("nan"), is_last: bool = False, is_best: bool = False) -> None:
        """Every rank must call it; the leader writes, and keeps the last two and the best.

        A disk that does not take it draws a warning, and the checkpoint before stays; only at the
        end of the run, or when `is_last`, it raises CheckpointError.
        """
        self.node.progress.phase = "saving"
        begun = time.perf_counter()
        self.gradient_sync.settle()
        share_leaders_buffers(model)
        rank_state = [gather_to_leader(tensor)
                      for tensor in self.gradient_sync.local_state(optimizer)]
        path = self.checkpoint_dir / checkpoint_folder.file_name(self.position)
        try:
            if self.node.world.is_leader:
                self._write(path, checkpoint.pack(
                    model, optimizer, self.position, loss, totals=totals,
                    settings=self.settings.as_json(),
                    ran_on=ran_on(self.name, self.node, self.settings, model), data=self.data,
                    validation_losses=self.validation_losses, rank_state=rank_state),
                    is_best)
            self.last_checkpoint = path
            self.log.event("checkpoint", file=path.name,
                           seconds=round(time.perf_counter() - begun, 6))
        except CheckpointError as error:
            if is_last or self._is_over():
                raise
            self.log.note(f"warning: {error}; training goes on, and the last good checkpoint is "
                          f"{self.last_checkpoint or 'none'}")
        self.node.stop.saved()
        self.clock.saved()

    def _write(self, path: Path, contents: dict[str, Any], is_best: bool) -> None:
        checkpoint.write(path, contents)
        if is_best:
            checkpoint.write(path.with_name(checkpoint_folder.BEST), contents)
        self.node.note_saved(str(path))
        if self.kept is not None:
            checkpoint_folder.prune(path, self.kept)


def ran_on(name: str, node: Node, settings: Settings, model: nn.Module) -> dict[str, Any]:
    """What must stay the same for a resumed run to be bit for bit the same run."""
    return {"run": name, "world_size": node.world.size, "accumulate": settings.accumulate,
            "bucket_mb": settings.bucket_mb, "threads": node.threads,
            "device": node.device.type, "convolutions": algorithms(model), **versions()}
