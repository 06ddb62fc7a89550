"""From the epoch plan to this rank's batches: in memory, or through worker processes.

Both loaders follow the same plan and give the same batches, bit for bit. PlainLoader wraps a
DataLoader of the user's own, which has an order of its own.
"""

import ctypes
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from common.core.failures import DataError, UsageError, first_line
from common.data.augment import Preparation
from common.data.dataset import Dataset
from common.data.epoch_plan import EpochPlan, ShardRange, mix

_PR_SET_PDEATHSIG = 1


class Batch(NamedTuple):
    """Samples of one global batch that this rank computes on: one shard of it, or more.

    `inputs` are normalised images (n, channels, height, width), channels last in memory, and
    `targets` int64 (n,); of a user's workload what its data set has, (n, ...). `weight` is n *
    shards / global batch: what the mean loss over these samples is multiplied by so that a plain
    mean over shards is the mean over the global batch; the shards are as many as ranks, or as
    virtual nodes. `indices` are the samples' numbers in the training set, int64 (n,), where the
    loader knows them.
    """

    inputs: Tensor
    targets: Tensor
    weight: Fraction = Fraction(1)
    indices: np.ndarray | None = None
    shards: ShardRange = ShardRange()


class Loader(Protocol):
    """Source of this rank's batches of an epoch, from any iteration on."""

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """This rank's batches of `epoch` from `first_iteration` to the end."""


@dataclass(frozen=True)
class InMemoryLoader:
    """Takes whole batches at once, and augments them in one go."""

    dataset: Dataset
    plan: EpochPlan
    augment: Preparation
    shards: ShardRange = ShardRange()
    device: torch.device = torch.device("cpu")

    def example(self) -> Tensor:
        """Two samples as the model will see them, (2, ...): for dry passes."""
        inputs, _ = self.dataset.take([0, 1])
        return self.augment.normalise(inputs.to(self.device))

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        for planned in planned_batches(self, epoch, first_iteration):
            inputs, targets = (each.to(self.device) for each in
                               self.dataset.take(planned.indices, planned.draw))
            how = (torch.from_numpy(part).to(self.device) for part in planned.augmentation)
            yield Batch(self.augment(inputs, *how), targets, planned.weight, planned.indices,
                        self.shards)


class WorkerLoader(torch.utils.data.Dataset):
    """The same batches, one sample at a time, in `workers` processes of torch's DataLoader.

    Slower, and worth watching in a trace: that is the lesson. Workers hold no random state; each
    request carries its sample's index and augmentation.
    """

    def __init__(self, loader: InMemoryLoader, workers: int) -> None:
        self.plan = loader.plan
        self.dataset = loader.dataset
        self._loader = loader
        self._workers = workers
        self.example = loader.example

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        plans = list(planned_batches(self._loader, epoch, first_iteration))
        requests = [[(planned.draw, *each) for each in zip(
            planned.indices.tolist(), *(a.tolist() for a in planned.augmentation), strict=True)]
            for planned in plans]
        # A generator of its own: else the loader would draw from the one that dropout draws from.
        fetched = DataLoader(self, batch_sampler=requests, num_workers=self._workers,
                             generator=torch.Generator(), worker_init_fn=_die_with_parent,
                             multiprocessing_context="fork" if self._workers else None)
        device = self._loader.device
        for planned, (inputs, targets) in zip(plans, _without_traceback(fetched), strict=True):
            if inputs.ndim == 4:
                inputs = inputs.to(memory_format=torch.channels_last)
            yield Batch(inputs.to(device), targets.to(device), planned.weight, planned.indices,
                        self._loader.shards)

    def __getitem__(self, request: tuple[int, int, int, int, bool, int, int],
                    ) -> tuple[Tensor, Tensor]:
        """One augmented sample: (draw, index, top, left, flip, row, column). For workers."""
        draw, index, *how = request
        inputs, targets = self.dataset.take([index], draw)
        inputs = self._loader.augment(inputs, *(torch.tensor([part]) for part in how))
        return inputs[0], targets[0]


def _without_traceback(fetched: Iterable[Any]) -> Iterator[Any]:
    """Yields the workers' samples; raises a Failure of theirs with its one sentence only.

    Raises DataError where a worker has ended: memory may have run out, or a data set may end it.
    """
    try:
        yield from fetched
    except (DataError, UsageError) as error:
        sentence = str(error).rpartition(f"{type(error).__name__}: ")[2]
        raise type(error)(sentence) from error.with_traceback(None)  # its frames hold the workers
    except (RuntimeError, OSError, EOFError) as error:  # as it was waited for, or as it handed over
        message = str(error)
        if message.startswith("Caught ") or (isinstance(error, RuntimeError)
                                             and "DataLoader worker (pid" not in message):
            raise  # of a worker's own, or nothing of theirs
        raise DataError("a worker process of the loader has ended while it fetched samples "
                        f"({first_line(error)})") from error.with_traceback(None)


def _die_with_parent(worker: int) -> None:
    """Ends this worker when its rank is killed; otherwise it would wait indefinitely."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class PlannedBatch(NamedTuple):
    """A batch before its samples are fetched: their numbers, their augmentation, their weight.

    `draw` is what their own random numbers depend on, besides their numbers.
    """

    indices: np.ndarray
    augmentation: Sequence[np.ndarray]
    weight: Fraction
    draw: int


def planned_batches(loader: InMemoryLoader, epoch: int,
                    first_iteration: int = 0) -> Iterator[PlannedBatch]:
    """The loader's shards of each global batch of `epoch`, from `first_iteration` on."""
    plan = loader.plan.at(epoch)
    for iteration in range(first_iteration, plan.iterations):
        indices = plan.samples_of(iteration, loader.shards)
        weight = Fraction(len(indices) * loader.shards.of, len(plan.batch(iteration)))
        padding = loader.augment.settings.crop_padding
        yield PlannedBatch(indices, plan.augmentation(indices, padding), weight,
                           mix(plan.seed, epoch))


@dataclass(frozen=True)
class PlainLoader:
    """Any iterable of (inputs, targets), such as a DataLoader, in the training loop's terms.

    The iterable's own order is used in every epoch and each rank's batches count alike, so the
    promise of one trajectory is the caller's to keep.
    """

    iterable: Iterable[tuple[Tensor, Tensor]]
    device: torch.device

    @property
    def iterations(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """All batches of the iterable; `epoch` is passed to a sampler that has set_epoch."""
        if (sampler := epoch_sampler(self.iterable)) is not None:
            sampler.set_epoch(epoch)
        for iteration, (inputs, targets) in enumerate(self.iterable):
            if iteration >= first_iteration:
                yield Batch(inputs.to(self.device), targets.to(self.device))


def epoch_sampler(loader: Any) -> Any:
    """The sampler of a DataLoader that has set_epoch, in a batch sampler or not; None without."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    return next((each for each in samplers if hasattr(each, "set_epoch")), None)


def length_of(loader: Any) -> int | None:
    """The number of a loader's batches, None where it does not know it."""
    try:
        return len(loader)
    except TypeError:
        return None


def batch_size_of(loader: Any) -> int:
    """The number of samples in a batch of a DataLoader, or of a list of batches; 0 if unknown."""
    size = getattr(loader, "batch_size", None) or getattr(
        getattr(loader, "batch_sampler", None), "batch_size", None)
    return size or (len(loader[0][1]) if isinstance(loader, Sequence) and loader else 0)
