"""Training loops on several ranks that are disturbed once, at random: for test_stalls.py.

    ... stalled_loops.py KIND LOOP AT CULPRIT SECONDS     (a rank, by torchrun's variables)

In half of the kinds a rank or a link is only slow: the loop must come to its end, without a word.
"""

import os
import random
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from common import witness
from tests.multiprocess.own_loops import average_gradients, data, small

BATCHES, EPOCHS = 8, 2
QUIET = 0.6  # seconds; a disturbance is much longer
SLOW = ("loads", "updates", "stopped", "hook", "saves", "evaluates", "trains on", "late")
LINKS = ("link down", "pair cut", "trickles")
LOST = "pair lost"  # for good
# By fault: the facts that every rank is told beside the culprit, and the exit code.
FAULTS = {
    "uneven": (("drop_last=True",), 3),
    "skips": ((15, "batch 16", "drop_last=True"), 3),
    "continues": (("`continue`",), 3),  # with DDP, which hands out buffers, soon after it
    "calls": (("backward", "forward", "`continue`"), 3),
    "averages": ((7, 8), 3),
    "killed": ((), 75),
    "raises": (("a mistake of mine",), 75),
    "stuck": (("timeout=",), 75)}
LINK_FAULTS = {LOST: (("node1", "node2", "10.77.0.2", "10.77.0.3"), 75)}


class Case(NamedTuple):
    """One disturbance, in step `at`, of rank `culprit`; a link's is that of its node."""

    kind: str
    loop: str = "ddp"
    at: int = 5
    culprit: int = 1
    seconds: float = 2.0

    @classmethod
    def random(cls, kind: str, ranks: int, numbers: random.Random) -> "Case":
        # Where a tensor of another size comes, as with "averages" by hand, gloo ends the process.
        loop = "ddp" if kind == "calls" else numbers.choice(["ddp", "hand"])
        loop = "ddp" if kind == "averages" else loop
        first = 1 if kind in (*FAULTS, *LINKS) else 0  # where the leader is lost, another sentence
        return cls(kind, loop, numbers.randint(2, BATCHES - 1), numbers.randrange(first, ranks),
                   round(numbers.uniform(1.5, 3.0), 1))


class Disturbed:
    """The loop's data and model, and what goes wrong in it."""

    def __init__(self, case: Case) -> None:
        self.case, self.rank, self.step = case, dist.get_rank(), 0
        self.inner = nn.Sequential(small(), nn.BatchNorm1d(3))
        self.model = DistributedDataParallel(self.inner) if case.loop == "ddp" else self.inner
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        dataset = data(2 * BATCHES * dist.get_world_size())
        self.loader = DataLoader(dataset, 2, sampler=DistributedSampler(dataset))
        if case.kind in ("uneven", "averages") and self.is_culprit():
            order = range(self.rank, len(dataset), dist.get_world_size())
            self.loader = DataLoader(Subset(dataset, list(order)[:-2]), 2)

    def is_culprit(self) -> bool:
        return self.rank == self.case.culprit

    def does(self, kind: str) -> bool:
        return self.case.kind == kind and self.is_culprit() and self.step == self.case.at

    def sleep_if(self, kind: str) -> None:
        if self.does(kind):
            time.sleep(self.case.seconds)

    def train(self) -> None:
        for epoch in range(EPOCHS):
            if isinstance(self.loader.sampler, DistributedSampler):
                self.loader.sampler.set_epoch(epoch)
            for inputs, targets in self.loader:
                self.step += 1
                self.batch(inputs, targets)
            if self.case.kind == "averages":
                dist.all_reduce(torch.ones(3))
            if self.case.kind == "evaluates":
                self.evaluate()

    def batch(self, inputs: Tensor, targets: Tensor) -> None:
        self.before(inputs)
        if self.does("skips"):
            return
        loss = cross_entropy(self.model(inputs), targets)
        if self.does("continues"):
            return
        if self.does("hook"):
            loss.register_hook(lambda gradient: time.sleep(self.case.seconds))
        self.optimizer.zero_grad()
        loss.backward()
        if self.case.loop == "hand":
            average_gradients(self.model)
        self.sleep_if("updates")
        self.optimizer.step()

    def before(self, inputs: Tensor) -> None:
        """Runs before the model is called."""
        if self.case.kind in (*LINKS, LOST):
            time.sleep(0.1)
            print("step", self.step, flush=True)
        self.sleep_if("loads")
        if self.does("stopped"):
            subprocess.Popen(["sh", "-c", f"sleep {self.case.seconds}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.does("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does("raises"):
            raise ValueError("a mistake of mine")
        if self.does("stuck"):
            time.sleep(1000)
        if self.does("calls"):
            self.model(inputs)

    def evaluate(self) -> None:
        """Evaluates on one rank alone, for long, while the other ranks wait."""
        if self.is_culprit():
            self.inner.eval()
            with torch.no_grad():
                self.inner(data().tensors[0])
            time.sleep(self.case.seconds)
            self.inner.train()
        dist.barrier()

    def after(self) -> None:
        """Runs after the loop, but before the witness's context ends."""
        kind, seconds = self.case.kind, self.case.seconds
        if kind == "saves" and self.is_culprit():
            time.sleep(seconds)
        if kind == "trains on":  # one rank has two batches more, of which no other needs to know
            for inputs, targets in [*self.loader][:2 * self.is_culprit()]:
                cross_entropy(self.inner(inputs), targets).backward()
                time.sleep(seconds / 2)
            for parameter in self.inner.parameters():
                dist.all_reduce(parameter.data, dist.ReduceOp.AVG)
        if kind == "late":
            if self.is_culprit():
                time.sleep(seconds)
            dist.barrier()


def hurry() -> None:
    """Has the witness of this process look ten times as often, and judge as much sooner."""
    from common.witnessing import standstill

    standstill.BEAT_SECONDS, standstill.QUIET_SECONDS = 0.1, QUIET


def main(kind: str, loop: str, at: str, culprit: str, seconds: str) -> None:
    case = Case(kind, loop, int(at), int(culprit), float(seconds))
    dist.init_process_group("gloo")
    here = Disturbed(case)
    with witness(here.model, here.optimizer, here.loader,
                 timeout={"stuck": 3.0, LOST: 8.0}.get(kind, 60.0)):
        here.train()
        here.after()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
