"""Records a training: the real loop over the real loaders, with any strategy in the seam."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from common.cluster.board import is_broken_collective
from common.cluster.devices import choose_device
from common.cluster.node import Node
from common.core.collectives import gather_bytes, world_size
from common.core.events import read_events
from common.core.world import World
from common.data.dataset import Dataset
from common.model.batch_norm import freeze_batch_norm
from common.options.workloads import WORKLOADS, Workload, workload_of
from common.run.opening import open_run
from common.run.saving import Checkpoints
from common.settings.settings import Interval, Settings
from common.settings.user_code import own_errors
from common.setup import create_loader, create_training
from common.training import train
from studies.proof.strategies import Strategy

Look = Callable[[int, int, Tensor], None]
"""Called as look(step, place, weight) after the optimizer's step of that number, from 1.

`weight` is the parameter at that place of the optimizer's groups.
"""


def look_away(step: int, place: int, weight: Tensor) -> None:
    """Does nothing: no weight is looked at."""


class Recorder:
    """Keeps the first and the last gradients that an optimizer was given, by its step hooks.

    One call of its `step` may be for a part of the parameters, when the strategy updates them as
    their gradients arrive. `look` is shown each of these after its step.
    """

    def __init__(self, optimizer: Optimizer, look: Look = look_away) -> None:
        self.first: dict[Parameter, Tensor] = {}
        self.last: dict[Parameter, Tensor] = {}
        self._look = look
        self._steps: Counter[Parameter] = Counter()
        self._given: set[Parameter] = set()
        optimizer.register_step_pre_hook(lambda optimizer, *_: self._note(optimizer))
        optimizer.register_step_post_hook(lambda optimizer, *_: self._show(optimizer))

    def _note(self, optimizer: Optimizer) -> None:
        given = {parameter: parameter.grad.clone() for group in optimizer.param_groups
               for parameter in group["params"] if parameter.grad is not None}
        if not given.keys().isdisjoint(self.last):
            self.last = {}  # a new step begins
        self.last.update(given)
        for parameter, gradient in given.items():
            self.first.setdefault(parameter, gradient)
        self._given = set(given)

    def _show(self, optimizer: Optimizer) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        for place, parameter in enumerate(parameters):
            if parameter in self._given:
                self._steps[parameter] += 1
                self._look(self._steps[parameter], place, parameter.detach().cpu())


Trajectory = dict[str, list[Tensor]]
"""Lists of tensors by quantity: "loss" (the global mean of each step), "first gradients" and "last
gradients" as the optimizer was given them, "weights", "statistics" (this rank's buffers), and
"optimizer" (its state)."""


@dataclass(frozen=True)
class Problem:
    """The training to compare: `settings`, and the workload that they name.

    `settings.batch_norm` may also be "frozen". `samples` thins the training set out to so many;
    `row` is for a workload that is not in the table, and must be importable as every argument.
    """

    settings: Settings
    samples: int | None = None
    row: Workload | None = None

    @property
    def steps(self) -> int:
        assert self.settings.max_iterations is not None  # a proof has a fixed number of steps
        return self.settings.max_iterations

    def load(self) -> Dataset:
        """The training set. Enters `row` into this process's table."""
        if self.row is not None:
            WORKLOADS[self.row.name] = self.row
        whole = workload_of(self.settings).dataset("train", self.settings.data_dir)
        return thinned(whole, self.samples)


class NoCheckpoints(Checkpoints):
    """Skips files, which take longer than a few steps; all else that saving does is done."""

    def save(self, *_: Any, **__: Any) -> None:
        """Writes nothing."""


def trajectory(problem: Problem, strategy: Strategy, look: Look = look_away) -> Trajectory:
    """Trains as `problem` and `strategy` say, and tells what was learned, on the CPU.

    On a GPU where the settings ask for it, which all ranks here share.

    `look` is shown every weight after every step. Every rank of the process group must call it.
    Raises what training raises, a fault of a user's own workload as a UserCodeError.
    """
    with own_errors(is_broken_collective, f"rank {dist.get_rank()}: ", problem.settings.workload):
        return _trajectory(problem, strategy, look)


def _trajectory(problem: Problem, strategy: Strategy, look: Look) -> Trajectory:
    settings, dataset = problem.settings, problem.load()
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    node = Node(World(dist.get_rank(), world_size()),
                choose_device(settings.device, dist.get_rank(), gpus_suffice=False),
                torch.get_num_threads())
    loader = create_loader(settings, dataset, node)
    model, criterion, optimizer = create_training(settings, dataset, node)
    if settings.batch_norm == "frozen":
        freeze_batch_norm(model)
    wiring = strategy(model, loader)
    seam = wiring.gradient_sync
    seam.prepare(model, optimizer)
    recorder = Recorder(optimizer, look)
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, output_dir=Path(folder), check_every=0,
                           checkpoint_every=Interval())
        with open_run("proof", "", settings, node, loader, model, optimizer, seam,
                      NoCheckpoints) as run:
            train(wiring.model, criterion, optimizer, wiring.loader, seam, run)
        losses = global_losses(run.log.metrics_path)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    learned = {"loss": [losses], "first gradients": [recorder.first[p] for p in trained],
               "last gradients": [recorder.last[p] for p in trained],
               "weights": [parameter.detach() for parameter in model.parameters()],
               "statistics": list(model.buffers()), "optimizer": _state_of(optimizer)}
    return {name: [tensor.cpu() for tensor in tensors] for name, tensors in learned.items()}


def _state_of(optimizer: Optimizer) -> list[Tensor]:
    return [value for group in optimizer.param_groups for parameter in group["params"]
            for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]


def thinned(dataset: Dataset, samples: int | None) -> Dataset:
    """`samples` of the data set, evenly spread over it; all of it for None or too many."""
    if samples is None or samples >= len(dataset):
        return dataset
    chosen = np.linspace(0, len(dataset) - 1, samples).astype(np.int64)
    return dataset.part(chosen)


def global_losses(metrics_path: Path) -> Tensor:
    """The mean loss of each step over all ranks' samples, float64 (steps,). Every rank must call.

    `metrics_path` is this rank's JSON lines. The sums are exact, in whatever order.
    """
    mine = [[step["loss_sum"], step["samples"]] for step in read_events(metrics_path, "step")]
    rows = [json.loads(each) for each in gather_bytes(json.dumps(mine).encode(),
                                                      torch.device("cpu"))]
    return torch.tensor([float(sum(Fraction(loss) for loss, _ in step)
                               / sum(samples for _, samples in step))
                         for step in zip(*rows, strict=True)], dtype=torch.float64)
