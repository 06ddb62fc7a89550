"""A mixture of two equal experts, of which a rank often uses one, and strategies of a user's own.

    python3 PartOne/main.py --workload tests/multiprocess/experts.py:EXPERTS
"""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.core.metrics import Metric
from common.options.workloads import Workload
from common.step.gradient_sync import GradientSync


class Experts(nn.Module):
    """Each sample (4,) goes to the expert that its first number names; one layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.idle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        chosen = (inputs[:, 0] > 0.8).long()
        found = torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            if (mask := chosen == number).any():
                found[mask] = expert(inputs[mask])
        return self.head(found.tanh())


def load(split: str, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(len(split)).normal(size=(72, 4))
    return inputs, np.sin(inputs.sum(1, keepdims=True))


EXPERTS = Workload("experts", load, Experts, criterion=nn.MSELoss(), metric=Metric(
    "error", lambda outputs, targets: (outputs - targets).abs().flatten()), defaults={
    "batch_size": 6, "epochs": 1, "precision": "float64", "learning_rate": 0.1,
    "weight_decay": 0.01})


class Inherited(GradientSync):
    """Knows nothing of gradients that are missing."""

    def average(self, gradients) -> None:
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
