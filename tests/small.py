"""Small data and a small model: what parity and resume tests train on, in milliseconds."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from common.cluster.node import Node
from common.data.augment import Augment
from common.data.dataset import ArrayDataset
from common.data.epoch_plan import EpochPlan, shard_range
from common.data.loaders import InMemoryLoader
from common.run.run import Run
from common.run.run_log import RunLog
from common.run.save_clock import SaveClock
from common.run.saving import Checkpoints
from common.run.sentinel import Sentinel
from common.run.tracing import create_tracer
from common.settings.settings import Settings
from common.step.gradient_sync import GradientSync


class FrozenBatchNorm(nn.BatchNorm2d):
    """Normalises with its running statistics, which never move: train() does not reach it."""

    def train(self, mode: bool = True) -> "FrozenBatchNorm":
        return super().train(False)


class SmallNet(nn.Module):
    """8x8 images to 3 classes, with two batch-norm layers of the given kind."""

    def __init__(self, norm: type[nn.Module] = FrozenBatchNorm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), norm(5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(5, 7, 3, padding=1), norm(7), nn.ReLU(), nn.Flatten(), nn.Linear(112, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def small_dataset(samples: int = 45) -> ArrayDataset:
    """Random images of 3 classes; each pixel says which sample it belongs to a little."""
    generator = np.random.default_rng(7)
    images = generator.integers(0, 256, (samples, 8, 8, 3), dtype=np.uint8)
    labels = generator.integers(0, 3, samples).astype(np.int64)
    return ArrayDataset(images, labels, ("a", "b", "c"), "small")


def small_loader(rank: int, world_size: int, samples: int = 45, batch_size: int = 10,
                 dtype: torch.dtype = torch.float64) -> InMemoryLoader:
    """Batches of 10 with a last one of 5: shards are uneven on 3 and 4 ranks."""
    plan = EpochPlan(samples, batch_size, seed=3)
    precision = "float64" if dtype == torch.float64 else "float32"
    augment = Augment(Settings(crop_padding=1, precision=precision), (0.5,) * 3, (0.25,) * 3, True)
    return InMemoryLoader(small_dataset(samples), plan, augment, shard_range(rank, world_size))


def small_model(dtype: torch.dtype = torch.float64,
                norm: type[nn.Module] = FrozenBatchNorm) -> SmallNet:
    """The same weights at every call."""
    torch.manual_seed(11)
    return SmallNet(norm).to(dtype)


def small_run(folder: Path, settings: Settings, node: Node, log: RunLog, model: nn.Module,
              optimizer: torch.optim.Optimizer | None = None,
              gradient_sync: GradientSync | None = None, iterations: int = 1,
              clock: SaveClock | None = None) -> Run:
    """A run whose replicas are not compared, as a loop of somebody else's has it."""
    return Run("", settings, node, model, optimizer or torch.optim.SGD(model.parameters(), 0.1),
               gradient_sync or GradientSync(), log,
               Checkpoints(folder, node, log, clock=clock or SaveClock()), iterations,
               Sentinel(model, None, node, every=0),
               create_tracer(settings, iterations, folder, node, log))
