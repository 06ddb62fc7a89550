"""One rank of benchmarks/sync.py: steps of every variant in turn, in one process group.

    python3 studies/choosing/worker.py --master-ip IP --num-nodes N --rank R \
        --variants '["compute only"]' --rounds 3 --steps 2 --output FILE
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
import os
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from common.arithmetic.choice import AUTO, use_fast_convolutions
from common.cluster.node import Node
from common.cluster.process_group import process_group
from common.cluster.program import run_program
from common.core.collectives import total_bytes
from common.core.metrics import ACCURACY
from common.core.precision import Precision
from common.core.progress import Position
from common.data.loaders import Batch
from common.model.vgg11 import VGG11
from common.options.command_line import parse_command_line
from common.run.state import State
from common.settings.settings import Settings
from common.step.accumulation import Part, micro_batches
from common.step.gradient_sync import GradientSync
from common.step.phase_timer import PhaseTimer
from common.step.readings import Readings
from common.step.schedules import create_schedule
from common.training import train
from studies.choosing.counters import read_counters
from studies.choosing.ready_times import ReadyTimes
from studies.choosing.variants import VARIANTS, find_variant
from studies.prediction.grid import COMPUTE_ONLY
from studies.wiring import Wired

GLOBAL_BATCH, IMAGE = 256, (3, 32, 32)
WARM_UP_STEPS = 3


class Turn:
    """Replaces the training loop's run: it times a few steps, and writes nothing."""

    metric = ACCURACY

    def __init__(self, gradient_sync: GradientSync, settings: Settings, steps: int,
                 ready: ReadyTimes | None) -> None:
        self.settings, self.precision = settings, Precision(settings.precision)
        self.position, self.schedule = Position(), create_schedule(settings, steps)
        self.timer, self.state = PhaseTimer(), State()
        self.ready_at: list[list[float]] = []
        self._gradient_sync, self._steps, self._ready = gradient_sync, steps, ready
        gradient_sync.waiting = partial(self.timer, "sync")

    def epochs(self) -> Iterator[int]:
        """Yields one epoch."""
        yield 1

    def iterations(self) -> Iterator[int]:
        """Counts the steps to time."""
        yield from range(self._steps)

    def passes(self, batch: Batch) -> Iterator[Part]:
        """Yields the whole batch at once."""
        self.readings = Readings(self.metric)
        for part, _ in micro_batches(batch, 1):
            yield part

    def finish_step(self, *_: Any) -> None:
        """Records when backward had each gradient ready, if asked to."""
        if self._ready:
            self.ready_at.append(self._ready.take())

    def finish_epoch(self, epoch: int) -> None:
        """Ends the turn: all weights are updated."""
        with self.timer("sync"):
            self._gradient_sync.settle()

    def save(self) -> None:
        """Does nothing: a turn is not saved."""

    def stop_if_asked(self) -> None:
        """Does nothing: a signal ends the whole benchmark."""


class Contestant:
    """One variant with its own replica of VGG-11; all see the same random images."""

    def __init__(self, name: str, node: Node, settings: Settings) -> None:
        torch.manual_seed(1)
        self.name, self._settings = name, settings
        self._model = VGG11().to(memory_format=torch.channels_last)
        shard = GLOBAL_BATCH // node.world.size
        # By the rule, so that all variants of a grid compute alike.
        use_fast_convolutions(self._model, IMAGE, GLOBAL_BATCH, Precision(settings.precision),
                              AUTO)
        self._batch = Batch(torch.randn(shard, *IMAGE).to(memory_format=torch.channels_last),
                            torch.randint(0, 10, (shard,)))
        self._optimizer = SGD(self._model.parameters(), 0.01, 0.9, weight_decay=1e-4)
        self.wired: Wired = find_variant(name)(self._model, self._batch.inputs[:2])
        self.wired.gradient_sync.prepare(self._model, self._optimizer)
        self._criterion = nn.CrossEntropyLoss()
        self._ready = ReadyTimes(self._model) if name == COMPUTE_ONLY else None

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """The one batch, over and over."""
        while True:
            yield self._batch

    def turn(self, steps: int) -> dict[str, Any]:
        """`steps` steps of common/training.py, one after the other; the mean step.

        Seconds by phase, and of all of it, which ends when all weights are updated. "user" and
        "system" are processor seconds of this rank, its gloo threads included.
        """
        turn, used = Turn(self.wired.gradient_sync, self._settings, steps, self._ready), os.times()
        train(self.wired.replica, self._criterion, self._optimizer, self,
              self.wired.gradient_sync, turn)  # type: ignore[arg-type]
        (whole, phases), ended = turn.timer.take(), os.times()
        taken = {**phases, "step": whole, "user": ended.user - used.user,
                 "system": ended.system - used.system}
        return {**{name: seconds / steps for name, seconds in taken.items()},
                "ready": [fmean(each) for each in zip(*turn.ready_at, strict=True)]}

    def warm_up(self) -> None:
        """Runs a step that sends nothing: the system may have put this memory away meanwhile."""
        precision, parameters = Precision(self._settings.precision), list(self._model.parameters())
        with precision.autocast(self._batch.inputs.device):
            outputs = self._model(self._batch.inputs)
        loss = self._criterion(precision.widen(outputs), self._batch.targets)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters),
                                       strict=True):  # which calls no strategy's hooks
            parameter.grad = gradient
        self._optimizer.step()

    @property
    def gradient_bytes(self) -> list[int]:
        """Bytes of each parameter's gradient, in the model's order."""
        return [total_bytes([parameter]) for parameter in self._model.parameters()]


def measure(contestant: Contestant, steps: int) -> dict:
    """Runs a turn that all ranks begin together; counts a step's bytes here and in the kernel."""
    contestant.warm_up()
    dist.barrier()
    counted, before = contestant.wired.gradient_sync.bytes_sent, read_counters()
    taken = contestant.turn(steps)
    dist.barrier()  # by now all has arrived, and so the kernel has counted it
    moved = read_counters() - before
    return {"steps": [taken], **{name: value / steps for name, value in {
        "counted": contestant.wired.gradient_sync.bytes_sent - counted,
        "wire": moved.sent, "payload_sent": moved.payload_sent,
        "payload_received": moved.payload_received}.items()}}


def run(options: argparse.Namespace, settings: Settings, node: Node) -> dict:
    """The gradients' bytes, and by variant an entry for each round."""
    contestants = [Contestant(name, node, settings) for name in json.loads(options.variants)]
    rounds: dict[str, list] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:
        for _ in range(WARM_UP_STEPS):
            contestant.warm_up()
    for _ in range(options.rounds):
        for contestant in contestants:
            node.progress.iteration += 1
            rounds[contestant.name].append(measure(contestant, options.steps))
    return {"gradient_bytes": contestants[0].gradient_bytes, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", default=json.dumps(list(VARIANTS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    options, rest = parser.parse_known_args()
    settings, world = parse_command_line("PartTwo", rest)
    with process_group(world, settings) as node:
        turns = run(options, settings, node)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"rank{world.rank}.json").write_text(json.dumps(turns))


if __name__ == "__main__":
    run_program(main)
