"""Two workloads of one's own: a transformer on token ids, and a regression on a table.

    python3 PartOne/main.py --workload examples/own_task.py:LONGEST_RUN
    python3 PartOne/main.py --workload examples/own_task.py:TABLE

Data is made up on the spot, the same on every rank; `load` may as well read files in `data_dir`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from common.core.metrics import Metric
from common.options.workloads import Workload

TOKENS, LENGTH = 8, 16


class LongestRun(Dataset):
    """Task: which token forms the longest run? A torch Dataset, samples made when asked for."""

    classes = [f"token {number}" for number in range(TOKENS)]

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        random = np.random.default_rng([self._seed, index])
        tokens, wanted = random.integers(TOKENS, size=LENGTH), int(random.integers(TOKENS))
        start = int(random.integers(LENGTH - 5))
        tokens[start:start + 5] = wanted
        return torch.from_numpy(tokens), wanted


class Transformer(nn.Module):
    """Token ids (n, LENGTH) to scores (n, classes)."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.layers(self.token(tokens) + self.place).mean(1))


def load_sequences(split: str, data_dir: Path) -> LongestRun:
    return LongestRun(2048, 1) if split == "train" else LongestRun(512, 2)


def load_table(split: str, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of eight numbers, float64 (n, 8), and what is to be found from them, (n, 1)."""
    random = np.random.default_rng(3)
    rows = random.standard_normal((2500, 8))
    wanted = np.sin(2 * rows[:, :1]) + rows[:, 1:2] * rows[:, 2:3]
    part = slice(0, 2000) if split == "train" else slice(2000, None)
    # rounded, since libraries differ in a sine's last bit, and ranks compare their data
    return tuple(np.round(each[part], 4) for each in (rows, wanted))


def build_regression() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                         nn.Linear(64, 1))


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().flatten()


LONGEST_RUN = Workload(
    "longest-run", load_sequences, Transformer,
    defaults={"batch_size": 64, "epochs": 4, "learning_rate": 0.003, "optimizer": "adam",
              "weight_decay": 0.0},
    has_convolutions=False, has_batch_norm=False)
TABLE = Workload(
    "table", load_table, build_regression, criterion=nn.MSELoss(),
    metric=Metric("mean absolute error", absolute_error),
    defaults={"batch_size": 50, "epochs": 10, "learning_rate": 0.003, "optimizer": "adam",
              "weight_decay": 0.0, "schedule": "one-cycle"},
    has_convolutions=False, has_batch_norm=False)
