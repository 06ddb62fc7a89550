"""A data set that lies where it is computed on: copied to a GPU once, not batch by batch.

    on_device(dataset, torch.device("cuda", 0)).take([0, 1])
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.data.dataset import PIECE, ArrayDataset, Dataset, Numbers
from common.data.rows_on_disk import RowsOnDisk

MOST_BYTES = 2**31  # ten times CIFAR-10


@dataclass(frozen=True)
class ResidentDataset(ArrayDataset):
    """The same samples, also as tensors on a device: `there`, inputs and targets."""

    there: tuple[Tensor, ...] = ()

    def take(self, chosen: Numbers, draw: int = 0) -> tuple[Tensor, Tensor]:
        inputs, targets = self.there
        numbers = torch.as_tensor(chosen, device=inputs.device)
        return inputs[numbers], targets[numbers]


def on_device(dataset: Dataset, device: torch.device) -> Dataset:
    """The data set with its samples on `device`; as it is on a CPU, or where it is too large."""
    if (device.type == "cpu" or not isinstance(dataset, ArrayDataset)
            or dataset.inputs.nbytes > MOST_BYTES):
        return dataset
    there = tuple(_copy(each, device) for each in (dataset.inputs, dataset.targets))
    return ResidentDataset(dataset.inputs, dataset.targets, dataset.class_names, dataset.digest,
                           dataset.note, there)


def _copy(array: np.ndarray | RowsOnDisk, device: torch.device) -> Tensor:
    """The array on `device`, copied in pieces: what lies on disk need not fit the host's memory."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    there = torch.empty(array.shape, dtype=dtype, device=device)
    for first in range(0, len(array), PIECE):
        there[first:first + PIECE] = torch.tensor(array[first:first + PIECE])
    return there
