"""Times every strategy in turn on these hosts, with a run's own data, model and global batch.

    scripts/local_cluster.sh 2 scripts/choose_strategy.py --workload digits-vgg11 --seconds 5
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from statistics import median
from typing import Any, NamedTuple

import torch

from common.cluster.node import Node
from common.core.collectives import gather_rows, total_bytes
from common.core.world import World
from common.data.dataset import Dataset
from common.data.loaders import Batch
from common.options.workloads import workload_of
from common.settings.settings import Settings
from common.setup import create_loader, create_training
from common.training import train
from studies.choosing.ready_times import ReadyTimes
from studies.choosing.variants import find_variant
from studies.choosing.worker import Turn
from studies.prediction.grid import COMPUTE_ONLY, Cell

ROUNDS = 5  # each gives every strategy a turn
WARM_UP_STEPS = 2


class Taken(NamedTuple):
    """The mean step of a turn: seconds in all, by phase, and to each parameter's gradient."""

    step: float
    phases: dict[str, float]
    ready: list[float]


class Contestant:
    """A strategy with a replica of its own, which goes on training from turn to turn."""

    def __init__(self, name: str, settings: Settings, train_set: Dataset, node: Node) -> None:
        self.name, self._settings, self._node = name, settings, node
        self._loader = create_loader(settings, train_set, node)
        self._model, self._criterion, self._optimizer = create_training(settings, train_set, node)
        self._wired = find_variant(name)(self._model, self._loader.example())
        self._wired.gradient_sync.prepare(self._model, self._optimizer)
        self._ready = ReadyTimes(self._model) if name == COMPUTE_ONLY else None
        self._batches = chain.from_iterable(self._loader.batches(epoch) for epoch in count(1))

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """The batches from where the last turn ended."""
        return self._batches

    def turn(self, steps: int) -> Taken:
        """Runs `steps` steps of common/training.py, to the end of the last one."""
        turn = Turn(self._wired.gradient_sync, self._settings, steps, self._ready)
        turn.metric = workload_of(self._settings).metric
        train(self._wired.replica, self._criterion, self._optimizer, self,
              self._wired.gradient_sync, turn)  # type: ignore[arg-type]
        self._node.wait_for_device()
        whole, phases = turn.timer.take()
        return Taken(whole / steps, {name: each / steps for name, each in phases.items()},
                     [median(each) for each in zip(*turn.ready_at, strict=True)])

    @property
    def gradient_bytes(self) -> list[int]:
        """Bytes of each parameter's gradient, in the model's order."""
        return [total_bytes([each]) for each in self._model.parameters() if each.requires_grad]


def one_host(node: Node) -> Node:
    """This node as if there were no other hosts."""
    return replace(node, world=World(), ranks=(), store=None)


def measure(names: Sequence[str], settings: Settings, train_set: Dataset, node: Node,
            seconds: float) -> list[Cell]:
    """Seconds a step of each strategy and of computing alone, as studies/prediction/grid.py has it.

    The first cell is the leader by itself, with the whole batch, if that is possible; the second
    all ranks. Every rank must call. Each strategy gets about so many `seconds`.
    """
    everybody = [Contestant(name, settings, train_set, node) for name in (COMPUTE_ONLY, *names)]
    alone = None
    if settings.batch_norm == "local":  # the other is a collective in every layer
        alone = Contestant(COMPUTE_ONLY, settings, train_set, one_host(node))  # on every rank:
        alone = alone if node.world.is_leader else None  # choosing its convolutions is collective
    takes: list[tuple[Contestant | None, list[Taken], list[float]]] = [
        (each, [], []) for each in (alone, *everybody)]
    steps = [_steps(_timed(each, WARM_UP_STEPS, node)[1], seconds) for each, _, _ in takes]
    for _ in range(ROUNDS):
        for (each, own, slowest), number in zip(takes, steps, strict=True):
            taken, longest = _timed(each, number, node)
            own += [taken] if taken else []
            slowest.append(longest)
    return _cells(takes, node)


def _timed(contestant: Contestant | None, steps: int, node: Node) -> tuple[Taken | None, float]:
    """Runs a turn that all ranks begin together: this rank's times, and the slowest one's step."""
    gather_rows(torch.zeros(1, device=node.device))
    taken = contestant.turn(steps) if contestant else None
    row = torch.tensor([taken.step if taken else 0.0], dtype=torch.float64, device=node.device)
    return taken, float(gather_rows(row).max())


def _steps(step: float, seconds: float) -> int:
    return max(1, int(seconds / ROUNDS / step)) if step else 1


def _cells(takes: list[tuple[Contestant | None, list[Taken], list[float]]],
           node: Node) -> list[Cell]:
    """The leader's measurements as cells; the caller, who knows the links, fills in `rate`."""
    (_, alone, alone_steps), (computing, own, _) = takes[:2]
    assert computing is not None
    sizes = computing.gradient_bytes
    by_itself = [_cell(1, sizes, alone, {COMPUTE_ONLY: _variant(alone, alone_steps)})
                 ] if alone else []
    return [*by_itself, _cell(node.world.size, sizes, own, {
        each.name: _variant(taken, slowest) for each, taken, slowest in takes[1:] if each})]


def _cell(nodes: int, sizes: list[int], computing: list[Taken], variants: dict[str, Any]) -> Cell:
    ready = [median(each) for each in zip(*(taken.ready for taken in computing), strict=True)]
    return {"nodes": nodes, "rate": "", "gradient_bytes": sizes, "ready": ready,
            "variants": variants}


def _variant(own: list[Taken], slowest: list[float]) -> dict[str, Any]:
    phases = {name: median(taken.phases[name] for taken in own) for name in own[0].phases}
    phases["forward"] += phases.pop("data")
    return {"steps": slowest, "phases": phases}
