"""A run while it goes on: where it stands, what it logs, when it checks, saves and stops.

    for epoch in run.epochs():
        for _ in run.iterations():
            for part in run.passes(batch): ...      # see common/training.py
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.arithmetic.choice import algorithms, products
from common.arithmetic.pooling import pooling
from common.arithmetic.products import arithmetic
from common.cluster.node import Node
from common.core.collectives import gather_rows, share_leaders_buffers
from common.core.metrics import Totals
from common.core.precision import Precision
from common.core.progress import Position
from common.core.provenance import code_digest, instruction_sets, versions
from common.core.random_numbers import seed_all
from common.data.epoch_plan import mix
from common.data.loaders import Batch
from common.model.batch_norm import is_synchronized
from common.run.run_end import best_in_words, is_over, last_step, should_stop
from common.run.run_log import RunLog, Step
from common.run.saving import Checkpoints
from common.run.sentinel import Sentinel
from common.run.state import State, told_to_all
from common.run.tracing import Tracer
from common.settings.settings import Settings
from common.settings.user_code import loaded
from common.step.accumulation import Part, micro_batches
from common.step.gradient_sync import GradientSync
from common.step.lockstep import JointPart, Lockstep
from common.step.phase_timer import PhaseTimer, moments_of
from common.step.readings import Readings
from common.step.schedules import create_schedule
from common.step.shard_scope import ShardScope


@dataclass
class Run:
    """A run on one rank, made by `open_run`. `name` is its folder's below --output-dir.

    `model` is the bare one, without DDP around it.
    """

    name: str
    settings: Settings
    node: Node
    model: nn.Module
    optimizer: Optimizer
    gradient_sync: GradientSync
    log: RunLog
    checkpoints: Checkpoints
    iterations_per_epoch: int
    sentinel: Sentinel
    tracer: Tracer
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self.folder = self.settings.output_dir / self.name
        self.state.is_whole = self.node.world.is_elastic
        self.buffers: list[Tensor] = []
        self.precision, self.metric = Precision(self.settings.precision), self.log.metric
        if self.precision.name == "fp16":
            self.state.loss_scale.attach(self.optimizer, self.node.device)
        self.schedule = create_schedule(self.settings, self.iterations_per_epoch)
        self._scope = ShardScope(self.model, self.settings)
        shards = self.settings.virtual_nodes if is_synchronized(self.model) else None
        self._lockstep = Lockstep(self.model, self._scope, self.gradient_sync,
                                  self.node.device, shards) if shards else None
        self.timer = PhaseTimer(self.node.progress, moments_of(self.node.device),
                                self.tracer.mark)
        self.gradient_sync.waiting = partial(self.timer, "sync")

    @property
    def position(self) -> Position:
        """The next batch to train on."""
        return self.state.position

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, the one that was interrupted first."""
        while not self.is_done():
            epoch = self.position.epoch
            if self.ends_late():
                epoch -= self.position.iteration == 0
            elif self.position.iteration == 0:
                self.state.totals = Totals()
            self.log.open_bar(epoch, self.position.step,
                              last_step(self.settings, self.iterations_per_epoch))
            self._epoch = epoch
            yield epoch
            self.state.closed = self.position

    def is_done(self) -> bool:
        """Returns True if no iteration is left, and the last epoch's end is done."""
        return self._is_over(self.position) and not self.ends_late()

    def ends_late(self) -> bool:
        """Returns True if an epoch's last step is done, and its end is not: a rank was lost there.
        """
        return self.state.closed != self.position and (
            self.position.iteration == 0 or self._is_over(self.position))

    def iterations(self) -> Iterator[int]:
        """The iterations that are left of the current epoch, each with its random numbers."""
        while self.position.epoch == self._epoch and not self._is_over(self.position):
            here, progress = self.position, self.node.progress
            progress.epoch, progress.iteration = here.epoch, here.iteration
            seed_step(self.settings.seed, here, self.node.world.rank)
            self.node.stop.begin_step()
            self._keep_buffers()
            self.tracer.before_step(here.step)
            self._sent_before = self.gradient_sync.bytes_sent
            self.timer.begin()
            yield here.iteration
            progress.has_stepped = True

    def passes(self, batch: Batch) -> Iterator[Part | JointPart]:
        """The parts of `batch`, each within what surrounds its forward and backward pass.

        That is the scope of its shard, and for all but the last the strategy's `no_sync`; or all
        shards are one part, in lockstep. Raises NotFinite at the end, where a GPU has computed a
        loss that is not finite.
        """
        self.readings = Readings(self.metric)
        parts = micro_batches(batch, self.settings.accumulate)
        yield from (self._lockstep.passes(self.position, [part for part, _ in parts])
                    if self._lockstep else self._one_by_one(parts))
        self._trained = self._all_trained = self.readings.totals()
        if self.state.is_whole:
            self._all_trained = told_to_all(self._trained, self.node)
            share_leaders_buffers(self.model)

    def _keep_buffers(self) -> None:
        """Keeps what forward moves, for a step that may have to be taken again without a rank."""
        if self.state.is_whole:
            self.buffers = [each.clone() for each in self.model.buffers()]

    def _one_by_one(self, parts: Iterator[tuple[Part, bool]]) -> Iterator[Part]:
        for part, is_last in parts:
            with (self._scope.of(self.position, part),
                  nullcontext() if is_last else self.gradient_sync.no_sync()):
                yield part

    def _is_over(self, position: Position) -> bool:
        return is_over(self.settings, position, self.state.validation_losses)

    def finish_step(self, indices: np.ndarray | None = None) -> None:
        """Logs the step, moves on to the next; checks and saves when that is due.

        `indices` are the numbers of this rank's samples in the training set. Every rank must call
        it. Replicas are compared, and the clock is read, only after steps at whose end all weights
        are equal.
        """
        at, done = self.position, self.position.after_one_more(self.iterations_per_epoch)
        self.state.position = done  # whatever fails from here on, the step is taken
        self.state.totals.add(self._all_trained)
        self._keep_buffers()
        self.sentinel.note(at, indices)
        agree = self.gradient_sync.replicas_agree
        is_check = agree and self.sentinel.is_due()
        is_look = agree and self.checkpoints.clock.is_look(done.step)
        if is_check or is_look or done.iteration == 0 or self._is_over(done):
            with self.timer("sync"):
                self.gradient_sync.settle()
        self.log.step(Step(at, self._trained, *self.timer.take(),
                           self.gradient_sync.bytes_sent - self._sent_before,
                           self.optimizer.param_groups[0]["lr"],
                           self._all_trained if self.state.is_whole else None))
        if skipped := self.state.loss_scale.skipped():
            self.log.note(f"skipped the update of {at}: {skipped}")
        self.node.progress.phase = "checking"
        if is_check:
            self.sentinel.check(done)
        self.tracer.after_step(done.step)
        if done.iteration and self.checkpoints.is_due(done.step, agree):
            self.save()
        if done.iteration:  # else the epoch's end comes next, and saves
            self.stop_if_asked()

    def finish_epoch(self, epoch: int) -> None:
        """Compares the replicas and logs the epoch's means over all ranks, who must all call it."""
        self.sentinel.check(self.position)
        self.log.epoch(epoch, self.state.all_totals(self.node))

    def note_validation(self, epoch: int, loss: float, score: float, **entries: Any) -> None:
        """Writes down how a whole epoch did on the validation set. Every rank must call it.

        The leader's mean loss counts for all, so that all decide alike whether to stop.
        """
        row = torch.tensor([loss], dtype=torch.float64, device=self.node.device)
        losses, rule = self.state.validation_losses, self.settings.validation
        del losses[epoch - 1:]  # a rank was lost before the epoch's end was done
        losses.append(float(gather_rows(row)[0]))
        self.log.validation(epoch, losses[-1], score, **entries)
        if should_stop(losses, rule.patience, rule.gain):
            self.log.note(f"stopped early after epoch {epoch}; {best_in_words(epoch, losses)}"
                          + self.checkpoints.where_the_best_is(losses))

    def stop_if_asked(self) -> None:
        """Ends the process here, with all saved, when a signal came and all ranks agreed on it."""
        if self.node.stop.boundary():
            if self.node.stop.needs_saving:
                self.save(is_last=True)
            self.node.stop.end()

    def save(self, is_last: bool = False) -> None:
        """Saves the run where it stands; every rank must call it. See Checkpoints.save."""
        self.checkpoints.save(self.model, self.optimizer, self.gradient_sync, self.state,
                              is_last or self._is_over(self.position))


def seed_step(seed: int, at: Position, rank: int) -> None:
    """Random numbers drawn in a step (dropout) depend on seed, position and rank alone.

    So a resumed run draws what the uninterrupted one drew.
    """
    seed_all(mix(seed, at.epoch, at.iteration, rank))


def ran_on(name: str, node: Node, settings: Settings, model: nn.Module) -> dict[str, Any]:
    """Conditions that a resumed run must keep to be bit for bit the same run."""
    ranks = {} if settings.virtual_nodes else {
        "run": name, "world_size": node.world.size, "accumulate": settings.accumulate,
        "bucket_mb": settings.bucket_mb}
    code = [code_digest(), *(f"{name}:{digest}" for name, digest in loaded().items())]
    return {**ranks, "code": " ".join(code), "threads": node.threads,
            "device": node.device.type, "instructions": instruction_sets(),
            "arithmetic": arithmetic(),
            "convolutions": algorithms(model),
            "products": products(model, Precision(settings.precision)),
            "pooling": pooling(model), **versions()}
