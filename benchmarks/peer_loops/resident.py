"""Speed of the model alone: one batch that lies on the device, no loader, nothing read.

The ceiling of every loop that also loads, augments and logs.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.peer_loops.job import Job, StepClock
from benchmarks.peer_loops.textbook import textbook_training
from common.core.precision import Precision

UNTIMED = 5  # compiling, and recording CUDA graphs, take the first few


def allow_tf32(job: Job) -> None:
    """Lets a GPU round the products of float32 if the job says so, and only then."""
    torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"


def run_resident_nchw(job: Job, clock: StepClock) -> str:
    """Eager, in the memory format that the course has; its settings."""
    return _train(job, clock, torch.contiguous_format)


def run_resident(job: Job, clock: StepClock) -> str:
    """Eager and channels_last."""
    return _train(job, clock)


def run_resident_compiled(job: Job, clock: StepClock) -> str:
    """channels_last and torch.compile."""
    return f"{_train(job, clock, prepare=torch.compile)}, torch.compile"


def run_resident_graphed(job: Job, clock: StepClock) -> str:
    """channels_last and torch.compile with CUDA graphs."""
    graphed = partial(torch.compile, mode="reduce-overhead")
    return f"{_train(job, clock, prepare=graphed)}, torch.compile with CUDA graphs"


def _train(job: Job, clock: StepClock, layout: torch.memory_format = torch.channels_last,
           prepare: Callable[[nn.Module], nn.Module] = lambda model: model) -> str:
    plain, criterion, optimizer = textbook_training(job)
    model, precision = prepare(plain.to(memory_format=layout)), Precision(job.precision)
    images = torch.randn(job.batch_size, 3, 32, 32, device=job.device).to(memory_format=layout)
    labels = torch.arange(job.batch_size, device=job.device) % 10
    untimed = UNTIMED if job.device != "cpu" else 0
    for step in range(untimed + job.ticks):
        optimizer.zero_grad()
        with precision.autocast(images.device):
            scores = model(images)
        criterion(precision.widen(scores), labels).backward()
        optimizer.step()
        if step >= untimed:
            clock.tick()
    return f"one batch, {str(layout).removeprefix('torch.')}"
