"""Lightning at its best settings, alone and with torch.compile: channels_last, nothing logged.

Data, model and workers are the course's, because it does not bring its own.
"""

import logging
import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.peer_loops.job import Job, StepClock
from benchmarks.peer_loops.textbook import WORKERS, textbook_loader, textbook_training


def library_loader(job: Job) -> tuple[DataLoader, str]:
    """The course's loader and the settings in words; for a GPU with a worker on every core."""
    workers = WORKERS if job.device == "cpu" else len(os.sched_getaffinity(0))
    return textbook_loader(job, workers), f"channels_last, {workers} workers"


def run_lightning_compiled(job: Job, clock: StepClock) -> str:
    """Trains as run_lightning, with a model that torch.compile has compiled."""
    return f"{run_lightning(job, clock, torch.compile)}, torch.compile"


def run_lightning(job: Job, clock: StepClock,
                  prepare: Callable[[nn.Module], nn.Module] = lambda model: model) -> str:
    """Trains through lightning.pytorch.Trainer until the clock has seen enough; its settings."""
    from lightning import pytorch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    model, criterion, optimizer = textbook_training(job)

    class Module(pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = prepare(model.to(memory_format=torch.channels_last))

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            images, labels = batch
            return criterion(self.model(images.to(memory_format=torch.channels_last)), labels)

        def on_train_batch_end(self, *_: object) -> None:
            clock.tick()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    precision = "bf16-mixed" if job.precision == "bf16" else "32-true"
    loader, settings = library_loader(job)
    # barebones leaves out all that costs: logging, checkpoints, bars, sanity checks
    trainer = pytorch.Trainer(accelerator="cpu" if job.device == "cpu" else "gpu", devices=1,
                              precision=precision, barebones=True, max_steps=job.ticks,
                              max_epochs=-1)
    trainer.fit(Module(), loader)
    return f"{settings}, {precision}, barebones"
