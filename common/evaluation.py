"""Evaluation over the whole test set, each sample exactly once, however many ranks share it."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from common.core.collectives import share_leaders_buffers, sum_over_ranks
from common.core.console import counted
from common.core.failures import NonFiniteLoss
from common.core.precision import Precision
from common.core.progress import Progress
from common.data.augment import Augment
from common.data.datasets import ImageDataset
from common.data.epoch_plan import shard_bounds
from common.options.workloads import create_augment
from common.run.run import Run
from common.step.optimizers import without_smoothing

EVALUATION_BATCH = 250


class Evaluation(NamedTuple):
    """The mean loss over samples, and truth and prediction of each sample, int64 (n,)."""

    loss: float
    truth: np.ndarray
    predictions: np.ndarray
    class_names: tuple[str, ...] = ()
    mirrored_accuracy: float | None = None
    """Where --tta asks: the accuracy of the mean scores of each image and its mirror image."""

    @property
    def accuracy(self) -> float:
        return float((self.truth == self.predictions).mean())


def evaluate(run: Run, criterion: nn.Module, dataset: ImageDataset) -> Evaluation:
    """Evaluates the run's model on `dataset`; every rank takes a shard and gets all results.

    Every rank must call it. The leader's running statistics count. `criterion` must be the mean
    over a batch; labels are not smoothed here. The model is left in evaluation mode.
    """
    result = _evaluate(run.model, without_smoothing(criterion), dataset, run)
    if not run.settings.tta:
        return result
    both = _evaluate(Mirrored(run.model), without_smoothing(criterion), dataset, run)
    return result._replace(mirrored_accuracy=both.accuracy)


class Mirrored(nn.Module):
    """The mean of a model's scores of images (n, c, h, w) and of their mirror images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scores = torch.stack([self.model(images), self.model(images.flip(3))])
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).mean(0)


def _evaluate(model: nn.Module, criterion: nn.Module, dataset: ImageDataset,
              run: Run) -> Evaluation:
    device = run.node.device
    share_leaders_buffers(model)
    shard = shard_bounds(len(dataset), run.node.world.rank, run.node.world.size)
    batches = _batches(dataset, create_augment(run.settings), shard, device)
    loss_sum, predictions = predict(model, criterion, batches, run.precision, run.node.progress)
    # Shards are disjoint, so sums over ranks put the pieces together; `seen` proves it.
    gathered = torch.zeros(2, len(dataset), dtype=torch.int64, device=device)
    gathered[0, shard] = predictions
    gathered[1, shard] = 1
    sum_over_ranks(gathered)
    loss = sum_over_ranks(torch.tensor(loss_sum, dtype=torch.float64, device=device)).item()
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the test loss is {loss / len(dataset)}: the last updates have "
                            "ruined the weights; try a smaller --learning-rate")
    if not bool((gathered[1] == 1).all()):
        raise AssertionError("the ranks did not evaluate every test sample exactly once")
    return Evaluation(loss / len(dataset), dataset.labels, gathered[0].cpu().numpy(),
                      dataset.class_names)


def _batches(dataset: ImageDataset, augment: Augment, shard: slice,
             device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    images, labels = torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels)
    starts = range(shard.start, shard.stop, EVALUATION_BATCH)
    for start in counted(starts, f"batches of {EVALUATION_BATCH} samples"):
        chosen = slice(start, min(start + EVALUATION_BATCH, shard.stop))
        yield augment.normalise(images[chosen].to(device)), labels[chosen].to(device)


@torch.no_grad()
def predict(model: nn.Module, criterion: nn.Module, batches: Iterable[tuple[Tensor, Tensor]],
            precision: Precision, progress: Progress) -> tuple[float, Tensor]:
    """The sum of the samples' losses, and the predicted classes, int64 (n,).

    The class is the arg-max of the log-softmax. Leaves the model in evaluation mode. Needs no
    other rank.
    """
    model.eval()
    loss_sum, predictions = 0.0, []
    for count, (inputs, targets) in enumerate(batches):
        progress.phase, progress.iteration = "evaluation", count
        with precision.autocast(inputs.device):
            outputs = model(inputs)
        outputs = precision.widen(outputs)
        loss_sum += criterion(outputs, targets).item() * len(targets)
        predictions.append(outputs.log_softmax(dim=1).argmax(dim=1))
    return loss_sum, torch.cat(predictions) if predictions else torch.empty(0, dtype=torch.int64)
