"""Evaluation over the whole test set, each sample exactly once, however many ranks share it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from common.core.collectives import share_leaders_buffers, sum_over_ranks
from common.core.console import counted
from common.core.failures import NonFiniteLoss
from common.core.precision import Precision
from common.core.progress import Progress
from common.core.world import World
from common.data.augment import Augment
from common.data.datasets import ImageDataset
from common.data.epoch_plan import share_of
from common.options.workloads import create_augment
from common.run.run import Run
from common.run.state import Totals, over_ranks
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
    batches = _my_batches(len(dataset), run.node.world)
    totals, predictions = predict(model, criterion, _loaded(
        dataset, create_augment(run.settings), batches, device), run.precision, run.node.progress)
    # Batches are disjoint, so sums over ranks put the pieces together; `seen` proves it.
    gathered = torch.zeros(2, len(dataset), dtype=torch.int64, device=device)
    mine = [place for batch in batches for place in range(batch.start, batch.stop)]
    gathered[0, mine] = predictions
    gathered[1, mine] = 1
    sum_over_ranks(gathered)
    if not bool((gathered[1] == 1).all()):
        raise AssertionError("the ranks did not evaluate every test sample exactly once")
    loss, _ = over_ranks(totals, run.node).means()
    return Evaluation(loss, dataset.labels, gathered[0].cpu().numpy(), dataset.class_names)


def _my_batches(samples: int, world: World) -> list[slice]:
    """This rank's of the test set's batches: the same batches, to the bit, on any number of ranks.

    """
    starts = range(0, samples, EVALUATION_BATCH)
    share = share_of(world.rank, world.size, len(starts))
    return [slice(start, min(start + EVALUATION_BATCH, samples))
            for start in starts[share.first:share.end]]


def _loaded(dataset: ImageDataset, augment: Augment, batches: Sequence[slice],
            device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    images, labels = torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels)
    for chosen in counted(batches, f"batches of {EVALUATION_BATCH} samples"):
        yield augment.normalise(images[chosen].to(device)), labels[chosen].to(device)


@torch.no_grad()
def predict(model: nn.Module, criterion: nn.Module, batches: Iterable[tuple[Tensor, Tensor]],
            precision: Precision, progress: Progress) -> tuple[Totals, Tensor]:
    """The sums over the samples, and the predicted classes, int64 (n,).

    The class is the arg-max of the log-softmax. Leaves the model in evaluation mode. Needs no
    other rank. Raises NonFiniteLoss.
    """
    model.eval()
    totals, predictions = Totals(), []
    for count, (inputs, targets) in enumerate(batches):
        progress.phase, progress.iteration = "evaluation", count
        with precision.autocast(inputs.device):
            outputs = model(inputs)
        outputs = precision.widen(outputs)
        loss = criterion(outputs, targets).item()
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"the test loss is {loss}: the last updates have ruined the "
                                "weights; try a smaller --learning-rate")
        predicted = outputs.log_softmax(dim=1).argmax(dim=1)
        totals.add(Totals(Fraction(loss) * len(targets), int((predicted == targets).sum()),
                          len(targets)))
        predictions.append(predicted)
    return totals, torch.cat(predictions) if predictions else torch.empty(0, dtype=torch.int64)
