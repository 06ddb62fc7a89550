"""One rank of benchmarks/sync.py: steps of every variant in turn, in one process group.

    python3 benchmarks/sync_benchmark/worker.py --master-ip IP --num-nodes N --rank R \
        --variants '["compute only"]' --rounds 3 --steps 2 --output FILE
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.sync_benchmark.variants import VARIANTS, Wired
from common.command_line import parse_command_line
from common.failures import run_program
from common.gradient_check import finite_gradients
from common.phase_timer import PhaseTimer
from common.precision import Precision
from common.process_group import Node, process_group
from common.vgg11 import VGG11

GLOBAL_BATCH = 256


class Contestant:
    """One variant with its own replica of VGG-11; all see the same random images."""

    def __init__(self, name: str, node: Node, precision: Precision) -> None:
        torch.manual_seed(1)
        self.name = name
        model = VGG11().to(memory_format=torch.channels_last)
        share = GLOBAL_BATCH // node.world.size
        self._images = torch.randn(share, 3, 32, 32).to(memory_format=torch.channels_last)
        self._targets = torch.randint(0, 10, (share,))
        self._precision = precision
        self._optimizer = SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
        self.wired: Wired = VARIANTS[name](model, self._images[:2])
        self._criterion = nn.CrossEntropyLoss()
        self._parameters = list(model.parameters())

    def step(self) -> dict[str, float]:
        """One step as common/training.py takes it; seconds by phase, and of all of it.

        "user" and "system" are processor seconds of this rank, its gloo threads included.
        """
        timer, started, used = PhaseTimer(), time.perf_counter(), os.times()
        with timer("forward"), self._precision.autocast(self._images.device):
            outputs = self.wired.replica(self._images)
        loss = self._criterion(outputs.float(), self._targets)
        with timer("backward"), finite_gradients(self.wired.replica, "", self.wired.gradient_sync):
            self._optimizer.zero_grad()
            loss.backward()
        with timer("sync"):
            self.wired.gradient_sync.average(self.gradients())
        with timer("update"):
            self._optimizer.step()
        ended = os.times()
        return {**timer.take(), "step": time.perf_counter() - started,
                "user": ended.user - used.user, "system": ended.system - used.system}

    def communicate(self) -> float:
        """Seconds of averaging alone, when all ranks begin together."""
        gradients = self.gradients()
        dist.barrier()
        started = time.perf_counter()
        self.wired.gradient_sync.average(gradients)
        return time.perf_counter() - started

    def gradients(self) -> Sequence[Tensor]:
        """The gradients of the last backward pass."""
        return [p.grad for p in self._parameters if p.grad is not None]


def wire_bytes() -> int:
    """Bytes that this host's interfaces but loopback have sent, as the kernel counts them."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if "lo:" not in line)


def measure(contestant: Contestant, steps: int) -> dict:
    """Steps that begin together on all ranks, and what they sent by our count and the kernel's."""
    taken = []
    dist.barrier()
    before = contestant.wired.gradient_sync.bytes_sent, wire_bytes()
    for _ in range(steps):
        dist.barrier()
        taken.append(contestant.step())
    dist.barrier()  # by now all has arrived, and so the kernel has counted it
    after = contestant.wired.gradient_sync.bytes_sent, wire_bytes()
    return {"steps": taken, "counted": (after[0] - before[0]) / steps,
            "wire": (after[1] - before[1]) / steps}


def run(options: argparse.Namespace, node: Node) -> dict[str, list]:
    """By variant, one entry for each round. The first round warms up and is left out."""
    contestants = [Contestant(name, node, Precision(options.precision))
                   for name in json.loads(options.variants)]
    rounds: dict[str, list] = {contestant.name: [] for contestant in contestants}
    for number in range(options.rounds + 1):
        for contestant in contestants:
            node.progress.iteration += 1
            found = measure(contestant, options.steps if number else 1)
            if "overlapped" not in contestant.name:
                found["alone"] = contestant.communicate()
            if number:
                rounds[contestant.name].append(found)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", default=json.dumps(list(VARIANTS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    options, rest = parser.parse_known_args()
    settings, world = parse_command_line("PartTwo", rest)
    options.precision = settings.precision
    with process_group(world, settings) as node:
        rounds = run(options, node)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"rank{world.rank}.json").write_text(json.dumps(rounds))


if __name__ == "__main__":
    run_program(main)
