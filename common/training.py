"""The only training loop. Parts One, Two and Three differ by the object in its seam.

Follow one batch: the loader hands over this rank's share of the global batch; forward and backward,
in one pass or more, give local gradients; `gradient_sync` turns them into means over the global
batch and has the optimiser step; the run writes it down. (`meet` is for strategies that average
weights now and then instead.)
"""

import math
import time
from functools import partial

from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.failures import NonFiniteLoss
from common.data.datasets import ImageDataset
from common.data.loaders import Batch, Loader
from common.evaluation import evaluate
from common.model.dropout import DropoutPlan
from common.model.replica import unwrapped
from common.run.run import Run
from common.run.run_log import Step, Totals
from common.step.accumulation import averaging, micro_batches
from common.step.gradient_check import finite_gradients
from common.step.gradient_sync import GradientSync
from common.step.phase_timer import PhaseTimer


def train(model: nn.Module, criterion: nn.Module, optimizer: Optimizer, loader: Loader,
          gradient_sync: GradientSync, run: Run,
          validation_set: ImageDataset | None = None) -> nn.Module:
    """Trains `model`, in place, from where `run` stands to the run's end, and returns it.

    Every rank must call it, with replicas of equal weights. `criterion` must be the mean over the
    samples of a batch. After each epoch all ranks evaluate `validation_set`, if any, together.
    Raises NonFiniteLoss when this rank's loss, or one of its gradients, is infinite or not a
    number.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    timer = PhaseTimer(run.node.progress, run.node.wait_for_device, run.tracer.mark)
    gradient_sync.waiting = partial(timer.instead, "sync")
    passes = Passes(model, criterion, gradient_sync, run, timer)
    for epoch in run.epochs():
        model.train()
        batches = loader.batches(epoch, run.position.iteration)
        for _ in run.iterations():
            started, bytes_before = time.perf_counter(), gradient_sync.bytes_sent
            with timer("data"):
                batch = next(batches)
            optimizer.zero_grad()
            share = passes.over(batch)
            with timer("sync"):
                gradient_sync.average([p.grad for p in parameters if p.grad is not None])
            with timer("update"):
                run.schedule.apply(optimizer, run.position.step)
                gradient_sync.update(optimizer)
            with timer("sync"):
                gradient_sync.meet(run.position.iteration, run.iterations_per_epoch,
                                   run.is_last_step)
                if run.looks_at_weights:
                    gradient_sync.settle()
            run.finish_step(
                Step(at=run.position, loss=share.means()[0], correct=int(share.correct),
                     samples=int(share.samples), duration=time.perf_counter() - started,
                     seconds=timer.take(), bytes_sent=gradient_sync.bytes_sent - bytes_before,
                     learning_rate=optimizer.param_groups[0]["lr"], indices=batch.indices),
                model, optimizer)
        run.finish_epoch(epoch, model, optimizer,
                         partial(_validate, model, criterion, validation_set, run))
    return model


class Passes:
    """Forward and backward over one batch: in one pass, or in as many as --accumulate says."""

    def __init__(self, model: nn.Module, criterion: nn.Module, gradient_sync: GradientSync,
                 run: Run, timer: PhaseTimer) -> None:
        self._model, self._criterion, self._gradient_sync = model, criterion, gradient_sync
        self._run, self._timer = run, timer
        self._precision = run.precision
        self._dropout = DropoutPlan(model, run.settings.seed)

    def over(self, batch: Batch) -> Totals:
        """Adds this rank's gradients to the parameters'; returns the sums over its samples.

        Every rank must call it. Raises NonFiniteLoss.
        """
        share = Totals()
        for part, is_last in micro_batches(batch, self._run.settings.accumulate):
            self._dropout.meet(self._run.position.epoch, part.indices)
            with averaging(self._model, self._gradient_sync, is_last):
                with self._timer("forward"):
                    loss = self._forward(part, share)
                with self._timer("backward"):
                    self._backward(loss * part.weight)
        return share

    def _forward(self, part: Batch, share: Totals) -> Tensor:
        """The mean loss over the part's samples, whose sums it adds to `share`."""
        with self._precision.autocast(part.inputs.device):
            outputs = self._model(part.inputs)
        loss = self._criterion(self._precision.widen(outputs), part.targets)
        share.add(_finite(loss, self._run), _correct(outputs, part.targets), len(part.targets))
        return loss

    def _backward(self, loss: Tensor) -> None:
        here = f"rank {self._run.node.world.rank} at {self._run.position}"
        with finite_gradients(self._model, here, self._gradient_sync):
            loss.backward()


def _validate(model: nn.Module, criterion: nn.Module, validation_set: ImageDataset | None,
              run: Run) -> tuple[float, float, float | None] | None:
    """(mean loss, accuracy, accuracy with mirror images or None) over the validation set, if any.

    Every rank must call it.
    """
    if validation_set is None:
        return None
    result = evaluate(unwrapped(model), criterion, validation_set, run)
    return result.loss, result.accuracy, result.mirrored_accuracy


def _finite(loss: Tensor, run: Run) -> float:
    """The loss as a number. Checked before the seam: one bad rank would spoil every replica."""
    value = loss.item()
    if not math.isfinite(value):
        raise NonFiniteLoss(f"the loss became {value} on rank {run.node.world.rank} at "
                            f"{run.position}; try a smaller --learning-rate")
    return value


def _correct(outputs: Tensor, targets: Tensor) -> int:
    return int((outputs.argmax(dim=1) == targets).sum())
