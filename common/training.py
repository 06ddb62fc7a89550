"""The only training loop. Parts One, Two and Three differ by the object in its seam.

Follow one batch: the loader hands over this rank's shard of the global batch; forward and backward,
in one pass or more, give local gradients; `gradient_sync` turns them into means over the global
batch; the optimizer takes its step; the run writes it down.
"""

from functools import partial

from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.precision import as_targets
from common.data.dataset import Dataset
from common.data.loaders import Loader
from common.evaluation import evaluate
from common.run.run import Run
from common.step.accumulation import Part
from common.step.gradient_sync import GradientSync
from common.step.lockstep import JointPart


def train(model: nn.Module, criterion: nn.Module, optimizer: Optimizer, loader: Loader,
          gradient_sync: GradientSync, run: Run,
          validation_set: Dataset | None = None) -> nn.Module:
    """Trains `model`, in place, from where `run` stands to the run's end, and returns it.

    Every rank must call it, with replicas of equal weights; `model` is the run's, or DDP around it.
    `criterion` must be the mean over the samples of a batch. After each epoch all ranks evaluate
    `validation_set`, if any, together. Raises NotFinite, which open_run makes NonFiniteLoss.
    """
    timer = run.timer
    for epoch in run.epochs():
        model.train()
        batches = loader.batches(epoch, run.position.iteration)
        for _ in run.iterations():
            with timer("data"):
                batch = next(batches)
            optimizer.zero_grad()
            for part in run.passes(batch):
                with timer("forward"):
                    loss = forward(model, criterion, part, run)
                with timer("backward"):
                    (loss * part.weight).backward()
            with timer("sync"):
                gradient_sync.average([p.grad for p in model.parameters() if p.grad is not None])
            with timer("update"):
                run.schedule.apply(optimizer, run.position.step)
                optimizer.step()
            run.finish_step(batch.indices)
        run.finish_epoch(epoch)
        if validation_set is not None and run.position.epoch > epoch:
            validate(run, criterion, validation_set, epoch)
        run.save()
        run.stop_if_asked()
    return model


def forward(model: nn.Module, criterion: nn.Module, part: Part | JointPart, run: Run) -> Tensor:
    """The mean loss over the part's samples, a scalar, which `run` notes too. In fp16, scaled.

    Raises NotFinite where the loss is not finite; where a GPU computes it, `run.passes` does later.
    """
    return part.computed_by(partial(_forward, model, criterion, run))


def _forward(model: nn.Module, criterion: nn.Module, run: Run, part: Part) -> Tensor:
    with run.precision.autocast(part.inputs.device):
        outputs = model(part.inputs)
    loss = criterion(run.precision.widen(outputs), as_targets(part.targets))
    run.readings.add(loss, outputs, part)
    return run.state.loss_scale.scaled(loss)


def validate(run: Run, criterion: nn.Module, validation_set: Dataset, epoch: int) -> None:
    """Evaluates the model after `epoch` and records the result. Every rank must call it."""
    test = evaluate(run, criterion, validation_set, "validation")
    run.note_validation(epoch, test.loss, test.score, mirrored_accuracy=test.mirrored_accuracy)
