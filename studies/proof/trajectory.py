"""What one rank learns: the real loop over the real loaders, whatever stands in the seam."""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from common.cluster.process_group import Node
from common.core.collectives import share_leaders_buffers, sum_over_ranks, world_size
from common.core.events import read_events
from common.core.settings import Settings
from common.core.world import World
from common.data.datasets import ImageDataset
from common.model.batch_norm import freeze_batch_norm
from common.options.workloads import WORKLOADS, Workload, find_workload
from common.run.resume import open_run
from common.run.run import Run
from common.setup import create_loader, create_training
from common.step.gradient_sync import GradientSync
from common.training import train
from studies.proof.strategies import Strategy

Look = Callable[[int, int, Tensor], None]
"""Is called as look(step, place, weight) when the optimizer has taken that step, counted from 1,
with the parameter at that place of its groups."""


def look_away(step: int, place: int, weight: Tensor) -> None:
    """The look of those who need no curve."""


class Recorder:
    """Passes everything on to a synchroniser; keeps the first and last gradients that were applied.

    They are those that the optimiser meets, whenever the synchroniser lets it: one call of its
    `step` may be for a part of the parameters. `look` is shown each of these after its step.
    """

    def __init__(self, inner: GradientSync, look: Look = look_away) -> None:
        self.first: dict[Parameter, Tensor] = {}
        self.last: dict[Parameter, Tensor] = {}
        self._inner, self._look = inner, look
        self._steps: Counter[Parameter] = Counter()
        self._met: set[Parameter] = set()
        self._watched: Optimizer | None = None
        self.checks_gradients = inner.checks_gradients

    @property
    def waiting(self) -> Callable[[], AbstractContextManager]:
        return self._inner.waiting

    @waiting.setter
    def waiting(self, entered: Callable[[], AbstractContextManager]) -> None:
        self._inner.waiting = entered

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    def prepare(self, model: nn.Module) -> None:
        """Prepares the inner synchroniser."""
        self._inner.prepare(model)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Every rank must call it."""
        self._inner.average(gradients)

    def update(self, optimizer: Optimizer) -> None:
        """Has the optimiser take its step, now or later; looks at what it is given."""
        if self._watched is None:
            self._watched = optimizer
            optimizer.register_step_pre_hook(lambda optimizer, *_: self._note(optimizer))
            optimizer.register_step_post_hook(lambda optimizer, *_: self._show(optimizer))
        self._inner.update(optimizer)

    def _note(self, optimizer: Optimizer) -> None:
        met = {parameter: parameter.grad.clone() for group in optimizer.param_groups
               for parameter in group["params"] if parameter.grad is not None}
        if not met.keys().isdisjoint(self.last):
            self.last = {}  # a new step begins
        self.last.update(met)
        for parameter, gradient in met.items():
            self.first.setdefault(parameter, gradient)
        self._met = set(met)

    def _show(self, optimizer: Optimizer) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        for place, parameter in enumerate(parameters):
            if parameter in self._met:
                self._steps[parameter] += 1
                self._look(self._steps[parameter], place, parameter.detach())

    def settle(self) -> None:
        """Lets the inner synchroniser finish the step."""
        self._inner.settle()

    def no_sync(self) -> AbstractContextManager:
        """The inner synchroniser's."""
        return self._inner.no_sync()

    @property
    def replicas_agree(self) -> bool:
        return self._inner.replicas_agree

    def meet(self, iteration: int, iterations: int, is_last: bool) -> None:
        """The inner synchroniser's."""
        self._inner.meet(iteration, iterations, is_last)

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """What the inner synchroniser remembers."""
        return self._inner.local_state(optimizer)


Trajectory = dict[str, list[Tensor]]
"""Lists of tensors by quantity: "loss" (the global mean of each step), "first gradients" and "last
gradients" as the optimiser met them, "weights", and "statistics" (the leader's buffers)."""


@dataclass(frozen=True)
class Problem:
    """What is trained: `settings`, and the workload that they name.

    `settings.batch_norm` may also be "frozen". `samples` thins the training set out to so many;
    `row` is for a workload that is not in the table, and must be importable as every argument.
    """

    settings: Settings
    samples: int | None = None
    row: Workload | None = None

    def load(self) -> ImageDataset:
        """The training set. Enters `row` into this process's table."""
        if self.row is not None:
            WORKLOADS[self.row.name] = self.row
        return thinned(find_workload(self.settings.workload).load("train", self.settings.data_dir),
                       self.samples)


def save_nothing(run: Run, model: nn.Module, *_: Any, **__: Any) -> None:
    """What saving does to the training, without the file, which takes longer than a few steps."""
    run.gradient_sync.settle()
    share_leaders_buffers(model)


def trajectory(problem: Problem, strategy: Strategy, look: Look = look_away) -> Trajectory:
    """Trains as `problem` and `strategy` say, and tells what was learned. On the CPU.

    `look` is shown every weight after every step. Every rank of the process group must call it.
    Raises what training raises.
    """
    settings, dataset = problem.settings, problem.load()
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    node = Node(World(dist.get_rank(), world_size()), torch.device("cpu"),
                torch.get_num_threads())
    loader = create_loader(settings, dataset, node)
    model, criterion, optimizer = create_training(settings, dataset, node)
    if settings.batch_norm == "frozen":
        freeze_batch_norm(model)
    wiring = strategy(model, loader)
    recorder = Recorder(wiring.gradient_sync, look)
    recorder.prepare(model)
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, output_dir=Path(folder), check_every=0,
                           checkpoint_minutes=0)
        with open_run("proof", settings, node, loader, model, optimizer, recorder) as run:
            run.save = partial(save_nothing, run)  # type: ignore[method-assign]
            train(wiring.model, criterion, optimizer, wiring.loader, recorder, run)
        losses = global_losses(run.log.metrics_path)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {"loss": [losses], "first gradients": [recorder.first[p] for p in trained],
            "last gradients": [recorder.last[p] for p in trained],
            "weights": [parameter.detach() for parameter in model.parameters()],
            "statistics": list(model.buffers())}


def thinned(dataset: ImageDataset, samples: int | None) -> ImageDataset:
    """`samples` of the data set, evenly spread over it; all of it for None or too many."""
    if samples is None or samples >= len(dataset):
        return dataset
    chosen = np.linspace(0, len(dataset) - 1, samples).astype(np.int64)
    return ImageDataset(dataset.images[chosen], dataset.labels[chosen], dataset.class_names,
                        f"{samples} of {dataset.digest}")


def global_losses(metrics_path: Path) -> Tensor:
    """The mean loss of each step over all ranks' samples, float64 (steps,). Every rank must call.

    `metrics_path` is this rank's JSON lines.
    """
    rows = [(step["loss"] * step["samples"], step["samples"])
            for step in read_events(metrics_path, "step")]
    totals = sum_over_ranks(torch.tensor(rows, dtype=torch.float64))
    return totals[:, 0] / totals[:, 1]
