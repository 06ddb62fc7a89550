"""Training loops as others write them, and what goes wrong in them: for test_witness.py.

    ... own_loops.py LOOP FAULT     (a rank, by torchrun's variables)
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from common import prepare_model_for_training, train_model, witness

BATCH, EPOCHS, EVERY = 2, 4, 3


def data(samples: int = 16) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def small(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Setting:
    """The arguments of a loop, with one `fault` planted in it; rank 1 is the one at fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.rank = fault, dist.get_rank()
        self.model = small(1 + self.has("begin"))
        self.loader = self._loader()
        self.rate = 0.1 if self.has("drift") else 0.05
        self.timeout = 3.0 if fault in ("stuck", "absent") else 60.0
        self.steps, self.has_continued = 0, False

    def has(self, fault: str) -> bool:
        return self.rank == 1 and self.fault == fault

    def _loader(self) -> Any:
        order = torch.Generator().manual_seed(7 + self.rank * (self.fault == "reshuffled"))
        if self.fault in ("same", "reshuffled"):
            return DataLoader(data(), BATCH, shuffle=True, generator=order)
        if self.fault == "uneven":  # 4 batches and 3
            return DataLoader(Subset(data(), range(self.rank, 15, 2)), BATCH, drop_last=True)
        if self.has("empty"):
            return []
        return DataLoader(data(), BATCH, sampler=DistributedSampler(data()))

    def begin_epoch(self, epoch: int) -> None:
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, DistributedSampler) and self.fault != "set_epoch":
            sampler.set_epoch(epoch)

    def continues(self) -> bool:
        """True if the loop skips the rest of this batch, as for a loss that is not finite."""
        is_now = self.steps == 4 and self.has("continued") and not self.has_continued
        self.has_continued |= is_now
        return is_now

    def before_step(self) -> None:
        """Runs between backward and step; in the fifth step the rank at fault ends, or stops."""
        self.steps += 1
        if self.has("clipped"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        if self.steps == 5 and self.has("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == 5 and self.has("stuck"):
            time.sleep(1000)
        if self.steps == 5 and self.has("raises"):
            raise ValueError("a mistake of mine")


def ddp_loop(here: Setting) -> nn.Module:
    """A loop with DistributedDataParallel, in its most common form."""
    model = DistributedDataParallel(here.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=here.rate, momentum=0.9)
    if here.has("begin"):
        with torch.no_grad():
            here.model[0].bias.add_(1)
    called = here.model if here.fault == "nobody" else model
    with witness(model, optimizer, here.loader, every=EVERY, timeout=here.timeout):
        for epoch in range(EPOCHS):
            here.begin_epoch(epoch)
            for inputs, targets in here.loader:
                optimizer.zero_grad()
                loss = cross_entropy(called(inputs), targets)
                if here.continues():
                    continue
                loss.backward()
                here.before_step()
                optimizer.step()
    return here.model


def hand_loop(here: Setting) -> nn.Module:
    """All-reduces each gradient, in batches that it cuts itself."""
    optimizer = torch.optim.SGD(here.model.parameters(), lr=here.rate)
    with witness(here.model, optimizer, here.loader, every=EVERY, timeout=here.timeout):
        for epoch in range(EPOCHS):
            here.begin_epoch(epoch)
            for inputs, targets in here.loader:
                loss = cross_entropy(here.model(inputs), targets)
                if here.continues():
                    continue
                loss.backward()
                if here.fault != "nobody":
                    for parameter in here.model.parameters():
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= dist.get_world_size()
                here.before_step()
                optimizer.step()
                optimizer.zero_grad()
    return here.model


def average_gradients(model: nn.Module) -> None:
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def tutorial_loop(here: Setting) -> nn.Module:
    """The pattern of torch's "Writing distributed applications": the loss summed up by epoch."""
    model, train_set = here.model, here.loader
    optimizer = torch.optim.SGD(model.parameters(), lr=here.rate, momentum=0.5)
    with witness(model, optimizer, train_set, every=EVERY, timeout=here.timeout):
        for epoch in range(EPOCHS):
            here.begin_epoch(epoch)
            epoch_loss = 0.0
            for inputs, targets in train_set:
                optimizer.zero_grad()
                output = model(inputs)
                loss = cross_entropy(output, targets)
                epoch_loss += loss.item()
                if here.continues():
                    continue
                loss.backward()
                here.before_step()
                if here.fault != "nobody":
                    average_gradients(model)
                optimizer.step()
            print("Rank ", dist.get_rank(), ", epoch ", epoch, ": ", epoch_loss)
    return model


class Disturbed(nn.Module):
    """A loss in which the rank at fault ends or stops: train_model leaves no other place."""

    def __init__(self, here: Setting) -> None:
        super().__init__()
        self.here = here

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.here.before_step()
        return cross_entropy(outputs, targets)


def documented(here: Setting) -> nn.Module:
    """The course's script, with its functions; part Two, or Three where wrapping matters."""
    is_wrapped = here.fault in ("unwrapped", "begin", "stuck")
    model, _, optimizer = prepare_model_for_training(
        here.model, "cpu", here.rate, 0.9, 0.0, False, distribute_flag=is_wrapped)
    if here.has("begin"):
        with torch.no_grad():
            here.model[0].bias.add_(1)
    model = here.model if here.fault == "unwrapped" else model
    loader = iter(list(here.loader)) if here.fault == "generator" else here.loader
    task = "" if is_wrapped or here.fault == "nobody" else "PartTwo"
    with tempfile.TemporaryDirectory() as folder:
        return train_model(model, "cpu", Disturbed(here), optimizer, 1, EPOCHS, loader,
                           Path(folder) / "log.txt", folder, is_wrapped, task, timeout=here.timeout)


LOOPS: dict[str, Callable[[Setting], nn.Module]] = {
    "ddp": ddp_loop, "hand": hand_loop, "tutorial": tutorial_loop, "documented": documented}


def main(loop: str, fault: str) -> None:
    if fault == "no group":
        model = small()
        with witness(model, torch.optim.SGD(model.parameters(), 0.1), []):
            return
    dist.init_process_group("gloo")
    if fault == "absent" and dist.get_rank() == 1:
        time.sleep(5)
        return
    LOOPS[loop](Setting(fault))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
