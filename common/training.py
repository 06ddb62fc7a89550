"""The only training loop. Parts One, Two and Three differ by the object in its seam.

Follow one batch: the loader hands over this rank's share of the global batch; forward and backward
give local gradients; `gradient_sync` turns them into means over the global batch; the optimiser
steps; the run writes it down.
"""

import math
import time

from torch import Tensor, nn
from torch.optim import Optimizer

from common.failures import NonFiniteLoss
from common.gradient_check import finite_gradients
from common.gradient_sync import GradientSync
from common.loaders import Loader
from common.phase_timer import PhaseTimer
from common.run import Run
from common.run_log import Step


def train(model: nn.Module, criterion: nn.Module, optimizer: Optimizer, loader: Loader,
          gradient_sync: GradientSync, run: Run) -> nn.Module:
    """Trains `model`, in place, from where `run` stands to the run's end, and returns it.

    Every rank must call it, with replicas of equal weights. `criterion` must be the mean over the
    samples of a batch. Raises NonFiniteLoss when this rank's loss, or one of its gradients, is
    infinite or not a number.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    timer = PhaseTimer(run.node.progress, run.node.wait_for_device)
    precision = run.precision
    model.train()
    for epoch in run.epochs():
        batches = loader.batches(epoch, run.position.iteration)
        for _ in run.iterations():
            started, bytes_before = time.perf_counter(), gradient_sync.bytes_sent
            with timer("data"):
                inputs, targets, weight, indices = next(batches)
            with timer("forward"):
                with precision.autocast(inputs.device):
                    outputs = model(inputs)
                loss = criterion(precision.widen(outputs), targets)
                mean_loss = _finite(loss, run)
            here = f"rank {run.node.world.rank} at {run.position}"
            with timer("backward"), finite_gradients(model, here, gradient_sync):
                optimizer.zero_grad()
                (loss * weight).backward()
            with timer("sync"):
                gradient_sync.average([p.grad for p in parameters if p.grad is not None])
            with timer("update"):
                optimizer.step()
            run.finish_step(
                Step(at=run.position, loss=mean_loss, correct=_correct(outputs, targets),
                     samples=len(targets), duration=time.perf_counter() - started,
                     seconds=timer.take(), bytes_sent=gradient_sync.bytes_sent - bytes_before,
                     indices=indices),
                model, optimizer)
        run.finish_epoch(epoch, model, optimizer)
    return model


def _finite(loss: Tensor, run: Run) -> float:
    """The loss as a number. Checked before the seam: one bad rank would spoil every replica."""
    value = loss.item()
    if not math.isfinite(value):
        raise NonFiniteLoss(f"the loss became {value} on rank {run.node.world.rank} at "
                            f"{run.position}; try a smaller --learning-rate")
    return value


def _correct(outputs: Tensor, targets: Tensor) -> int:
    return int((outputs.argmax(dim=1) == targets).sum())
