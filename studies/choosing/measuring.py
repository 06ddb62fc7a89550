"""Times variants in turns, in one process group: each rank's own steps and phases.

    scripts/local_cluster.sh 2 scripts/choose_strategy.py --workload digits-vgg11 --seconds 5

benchmarks/sync.py measures with it on limited links, scripts/choose_strategy.py on a user's hosts.
Both keep cells, which scripts/predict.py is calibrated on.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count
from statistics import median

import torch

from common.cluster.node import Node
from common.core.collectives import gather_bytes_to_leader, gather_rows, total_bytes
from common.data.dataset import Dataset
from common.data.loaders import Batch
from common.options.workloads import workload_of
from common.settings.settings import Settings
from common.setup import create_loader, create_training
from common.training import forward, train
from studies.choosing.ready_times import ReadyTimes
from studies.choosing.turn import Turn
from studies.choosing.variants import find_variant
from studies.prediction.grid import COMPUTE_ONLY, Cell, TurnRecord, variant

Rounds = list[list[TurnRecord]]
"""A variant's turns: each round has one of every rank."""


class Contestant:
    """A variant with a replica of its own, which goes on training from turn to turn."""

    def __init__(self, name: str, settings: Settings, train_set: Dataset, node: Node) -> None:
        self.name, self._settings, self._node = name, settings, node
        loader = create_loader(settings, train_set, node)
        self._model, self._criterion, self._optimizer = create_training(settings, train_set, node)
        self._replica, self._sync = find_variant(name)(self._model, loader.example())
        self._sync.prepare(self._model, self._optimizer)
        self._trained = [each for each in self._model.parameters() if each.requires_grad]
        self._ready = ReadyTimes(self._model) if name == COMPUTE_ONLY else None
        self._batches = chain.from_iterable(map(loader.batches, count(1)))

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """The batches from where the last turn ended."""
        return self._batches

    def turn(self, steps: int) -> TurnRecord:
        """Runs `steps` steps of common/training.py, until all weights are updated; the mean step.
        """
        turn = self._turn(steps)
        train(self._replica, self._criterion, self._optimizer, self, self._sync,
              turn)  # type: ignore[arg-type]
        self._node.wait_for_device()
        whole, phases = turn.timer.take()
        return {"step": whole / steps, "ready": turn.ready_at,
                "phases": {name: seconds / steps for name, seconds in phases.items()}}

    def warm_up(self) -> None:
        """Runs a step that sends nothing: the system may have put this memory away meanwhile."""
        turn = self._turn(1)
        for part in turn.passes(next(self._batches)):
            loss = forward(self._model, self._criterion, part, turn)  # type: ignore[arg-type]
        # which calls no strategy's hooks
        gradients = torch.autograd.grad(loss, self._trained, allow_unused=True)
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()

    def _turn(self, steps: int) -> Turn:
        return Turn(self._sync, self._settings, workload_of(self._settings).metric, steps,
                    self._ready)

    @property
    def gradient_bytes(self) -> list[int]:
        """Bytes of each parameter's gradient, in the model's order."""
        return [total_bytes([each]) for each in self._trained]


def measure(contestants: Sequence[Contestant | None], steps: Sequence[int], rounds: int,
            node: Node) -> list[Rounds]:
    """The rounds of each contestant, on the leader; [] elsewhere. Every rank must call it.

    In a round each has a turn of so many `steps`. A rank that does not take part has None.
    """
    turns: list[list[TurnRecord | None]] = [[] for _ in contestants]
    for _ in range(rounds):
        for own, contestant, number in zip(turns, contestants, steps, strict=True):
            own.append(take_turn(contestant, number, node))
    by_rank = map(json.loads, gather_bytes_to_leader(json.dumps(turns).encode(), node.device))
    return [[[turn for turn in ranks if turn] for ranks in zip(*own, strict=True)]
            for own in zip(*by_rank, strict=True)]


def take_turn(contestant: Contestant | None, steps: int, node: Node) -> TurnRecord | None:
    """Runs a turn, warm, that all ranks begin together, and only when all have ended the last."""
    node.progress.iteration += 1
    wait_for_all = partial(gather_rows, torch.zeros(1, device=node.device))
    wait_for_all()
    if contestant:
        contestant.warm_up()
    wait_for_all()
    return contestant.turn(steps) if contestant else None


def measured_cell(nodes: int, contestants: Sequence[Contestant],
                  rounds: Sequence[Rounds]) -> Cell:
    """The cell of these rounds; the caller, who knows the links, fills in `rate`.

    One of the contestants must be COMPUTE_ONLY.
    """
    by_name = {each.name: own for each, own in zip(contestants, rounds, strict=True)}
    ready = [turn["ready"] for turns in by_name[COMPUTE_ONLY] for turn in turns]
    return {"nodes": nodes, "rate": "", "gradient_bytes": contestants[0].gradient_bytes,
            "ready": [median(each) for each in zip(*ready, strict=True)],
            "variants": {name: variant(own) for name, own in by_name.items()}}
