"""Evaluation over the whole test set, each sample exactly once, however many ranks share it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from common.cluster.node import Node
from common.core.collectives import share_leaders_buffers, sum_over_ranks
from common.core.console import counted
from common.core.failures import NonFiniteLoss
from common.core.metrics import ACCURACY, Metric, Totals, classes_of
from common.core.precision import Precision, as_targets
from common.core.progress import Progress
from common.core.world import World
from common.data.augment import Preparation
from common.data.dataset import Dataset
from common.data.epoch_plan import shard_range
from common.options.workloads import create_augment
from common.run.state import over_ranks
from common.settings.settings import Settings
from common.step.optimizers import without_smoothing
from common.step.readings import not_finite, say_not_finite

EVALUATION_BATCH = 250
NO_CLASSES = np.empty(0, np.int64)


class Evaluable(Protocol):
    """A model, and how it is to be evaluated: a Run, or what a checkpoint holds."""

    @property
    def settings(self) -> Settings: ...

    @property
    def node(self) -> Node: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def metric(self) -> Metric: ...


class Evaluation(NamedTuple):
    """Mean loss over samples; for classes, each sample's truth and prediction, int64 (n,).

    With a metric other than accuracy there are `totals` instead. `mirrored_accuracy`, set with
    --tta, is the accuracy of the mean scores of an image and its mirror image.
    """

    loss: float
    truth: np.ndarray
    predictions: np.ndarray
    class_names: tuple[str, ...] = ()
    mirrored_accuracy: float | None = None
    totals: Totals | None = None

    @property
    def accuracy(self) -> float:
        return float((self.truth == self.predictions).mean())

    @property
    def score(self) -> float:
        """The mean of the run's metric."""
        return self.totals.means()[1] if self.totals else self.accuracy

    @property
    def samples(self) -> int:
        return self.totals.samples if self.totals else len(self.truth)


def evaluate(run: Evaluable, criterion: nn.Module, dataset: Dataset,
             split: str = "test") -> Evaluation:
    """Evaluates the run's model on `dataset`; every rank takes a shard and gets all results.

    Every rank must call it. The leader's running statistics count. `criterion` must be the mean
    over a batch; labels are not smoothed here. The model is left in evaluation mode. Raises
    NonFiniteLoss, which calls the data set the `split` set.
    """
    result = _evaluate(run.model, without_smoothing(criterion), dataset, run, split)
    if not run.settings.tta:
        return result
    both = _evaluate(Mirrored(run.model), without_smoothing(criterion), dataset, run, split)
    return result._replace(mirrored_accuracy=both.accuracy)


class Mirrored(nn.Module):
    """The mean of a model's scores of images (n, c, h, w) and of their mirror images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scores = torch.stack([self.model(images), self.model(images.flip(3))])
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).mean(0)


def _evaluate(model: nn.Module, criterion: nn.Module, dataset: Dataset,
              run: Evaluable, split: str) -> Evaluation:
    device = run.node.device
    share_leaders_buffers(model)
    batches = _my_batches(len(dataset), run.node.world)
    totals, classes = predict(model, criterion, _loaded(
        dataset, create_augment(run.settings), batches, device), run.precision, run.node.progress,
        run.metric, split, batches[0].start if batches else 0)
    # Batches are disjoint, so sums over ranks put the pieces together; `seen` proves it.
    gathered = torch.zeros(3, len(dataset), dtype=torch.int64, device=device)
    mine = [place for batch in batches for place in range(batch.start, batch.stop)]
    gathered[:2, mine] = classes
    gathered[2, mine] = 1
    sum_over_ranks(gathered)
    if not bool((gathered[2] == 1).all()):
        raise AssertionError("the ranks did not evaluate every test sample exactly once")
    totals = over_ranks(totals, run.node)
    loss, _ = totals.means()
    if run.metric is not ACCURACY:
        return Evaluation(loss, NO_CLASSES, NO_CLASSES, totals=totals)
    truth, predictions, _ = gathered.cpu().numpy()
    return Evaluation(loss, truth, predictions, dataset.class_names)


def _my_batches(samples: int, world: World) -> list[slice]:
    """This rank's batches of the test set: the same batches, to the bit, on any number of ranks."""
    starts = range(0, samples, EVALUATION_BATCH)
    mine = shard_range(world.rank, world.size, len(starts))
    return [slice(start, min(start + EVALUATION_BATCH, samples))
            for start in starts[mine.first:mine.end]]


def _loaded(dataset: Dataset, augment: Preparation, batches: Sequence[slice],
            device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for chosen in counted(batches, f"batches of {EVALUATION_BATCH} samples"):
        taken = dataset.take(np.arange(chosen.start, chosen.stop))
        inputs, targets = (each.to(device) for each in taken)
        yield augment.normalise(inputs), targets


@torch.no_grad()
def predict(model: nn.Module, criterion: nn.Module, batches: Iterable[tuple[Tensor, Tensor]],
            precision: Precision, progress: Progress,
            metric: Metric = ACCURACY, split: str = "test", first: int = 0,
            ) -> tuple[Totals, Tensor]:
    """Sums over the samples; and their classes and the predicted ones, int64 (2, n).

    The predicted class is the arg-max of the log-softmax. With a metric other than accuracy all are
    0. Leaves the model in evaluation mode. Needs no other rank. Raises NonFiniteLoss, with the
    number of a sample that is not finite itself; that of the `split` set's first here is `first`.
    """
    model.eval()
    totals, classes = Totals(), []
    for count, (inputs, targets) in enumerate(batches):
        progress.phase, progress.iteration = "evaluation", count
        with precision.autocast(inputs.device):
            outputs = model(inputs)
        outputs, targets = precision.widen(outputs), as_targets(targets)
        loss = criterion(outputs, targets).item()
        if not math.isfinite(loss):
            wrong = not_finite(inputs, targets)
            raise NonFiniteLoss(f"the {split} loss is {loss}: " + (say_not_finite(
                first + totals.samples + wrong[0], f"of the {split} set", len(wrong) - 1)
                if wrong else "the last updates have ruined the weights; try a smaller "
                "--learning-rate"))
        totals.add(Totals(Fraction(loss) * len(targets), metric.sum(outputs, targets),
                          len(targets)))
        classes.append(
            torch.stack([classes_of(targets), outputs.log_softmax(dim=1).argmax(dim=1)])
            if metric is ACCURACY else targets.new_zeros(2, len(targets)).long())
    return totals, torch.cat(classes, dim=1) if classes else torch.empty(2, 0, dtype=torch.int64)
