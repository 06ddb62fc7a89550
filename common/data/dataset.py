"""Samples by number: what loaders, proof and evaluation ask of a data set.

    python3 -c "from common.data.datasets import load_digits; print(load_digits('train').take([0]))"
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from common.core.failures import DataError, first_line
from common.settings.user_code import own_frames

if TYPE_CHECKING:
    from common.data.rows_on_disk import RowsOnDisk

Numbers = np.ndarray | Sequence[int]
LOOKED_AT = 64
IGNORED = -100
PIECE = 1024  # rows that are hashed at a time


class Dataset(Protocol):
    """Samples that are numbered from 0.

    `class_names` are empty if targets are not classes. `digest` is equal on every node that holds
    the same data. `note` is a remark on how they were read, or "".
    """

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...

    @property
    def note(self) -> str: ...

    def __len__(self) -> int: ...

    def take(self, chosen: Numbers) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the `chosen` samples, (n, ...) each, as new tensors."""

    def part(self, chosen: np.ndarray) -> "Dataset":
        """A data set of the `chosen` samples, int64 (n,)."""


@dataclass(frozen=True)
class ArrayDataset:
    """Inputs (n, ...), targets (n, ...), one name per class.

    Images are uint8 (n, height, width, channels) with int64 targets (n,); points are images of one
    pixel: float32 (n, 1, 1, coordinates). `digest` is a hash of all values and names.
    """

    inputs: "np.ndarray | RowsOnDisk"
    targets: np.ndarray
    class_names: tuple[str, ...]
    digest: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, chosen: Numbers) -> tuple[Tensor, Tensor]:
        # numpy copies an image in one piece, torch a byte at a time: 15 times as long
        return torch.from_numpy(self.inputs[chosen]), torch.from_numpy(self.targets[chosen])

    def part(self, chosen: np.ndarray) -> "ArrayDataset":
        return ArrayDataset(self.inputs[chosen], self.targets[chosen], self.class_names,
                            _digest_of_part(self, chosen), self.note)


@dataclass(frozen=True)
class ItemDataset:
    """A torch Dataset, whose samples are fetched when they are wanted: for what fills no memory.

    `items[i]` is (input, target): tensors, arrays or numbers, of equal shapes. `digest` is of the
    number of samples and a few of them.
    """

    items: torch.utils.data.Dataset
    numbers: np.ndarray
    class_names: tuple[str, ...]
    digest: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, chosen: Numbers) -> tuple[Tensor, Tensor]:
        inputs, targets = default_collate([self.items[int(self.numbers[each])] for each in chosen])
        return inputs, targets

    def part(self, chosen: np.ndarray) -> "ItemDataset":
        return ItemDataset(self.items, self.numbers[chosen], self.class_names,
                           _digest_of_part(self, chosen))


def _digest_of_part(whole: Dataset, chosen: np.ndarray) -> str:
    return hashlib.sha256(whole.digest.encode() + chosen.tobytes()).hexdigest()[:16]


def make_dataset(inputs: np.ndarray, targets: np.ndarray, class_names: Sequence[str],
                 note: str = "") -> ArrayDataset:
    return ArrayDataset(inputs, targets, tuple(class_names),
                        digest_of_arrays([inputs, targets], class_names), note)


def digest_of_arrays(arrays: "Sequence[np.ndarray | RowsOnDisk]", class_names: Sequence[str]
                     ) -> str:
    """A hash of the first array's shape, the names and all values; 16 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps([list(arrays[0].shape), list(class_names)]).encode())
    for each in arrays:
        for first in range(0, len(each), PIECE):
            digest.update(np.ascontiguousarray(each[first:first + PIECE]).data)
    return digest.hexdigest()[:16]


def form_of(dataset: Dataset) -> dict[str, Any]:
    """Shape and dtype of a sample, class names and size, as plain values for checkpoints."""
    sample = dataset.take([0])[0]
    return {"shape": list(sample.shape[1:]), "dtype": str(sample.dtype).removeprefix("torch."),
            "classes": list(dataset.class_names), "count": len(dataset)}


def blank_dataset(form: Mapping[str, Any]) -> ArrayDataset:
    """One sample of zeros, of the form that `form_of` told of."""
    sample = np.zeros((1, *form["shape"]), form["dtype"])
    return ArrayDataset(sample, np.zeros(1, np.int64), tuple(form["classes"]), "blank")


def _as_array(values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
        torch.from_numpy(array[:0])
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DataError("a workload's load returned what is no array of numbers "
                        f"({first_line(error)})") from error
    return array


def as_dataset(loaded: Any) -> Dataset:
    """Converts the result of a workload's `load` to a data set.

    That may be one; (inputs, targets) or (inputs, targets, class names), as arrays or tensors; or a
    torch Dataset with a length, whose `classes` are the class names. Else a DataError.
    """
    if isinstance(loaded, ArrayDataset | ItemDataset):
        return loaded
    if isinstance(loaded, tuple) and len(loaded) in (2, 3):
        inputs, targets = map(_as_array, loaded[:2])
        if len(inputs) != len(targets):
            raise DataError("a workload's load returned inputs and targets that are not as many: "
                            f"{len(inputs)} and {len(targets)}")
        if not len(inputs):
            raise DataError("a workload's load returned an empty data set: no inputs, no targets")
        return make_dataset(inputs, targets, loaded[2] if len(loaded) == 3 else ())
    if not (hasattr(loaded, "__getitem__") and hasattr(loaded, "__len__")):
        raise DataError(f"a workload's load returned {type(loaded).__name__}: it must be (inputs, "
                        "targets), or a torch Dataset with __getitem__ and __len__")
    numbers, names = np.arange(len(loaded)), tuple(getattr(loaded, "classes", ()))
    looked_at = _looked_at(ItemDataset(loaded, numbers, names, ""))
    return ItemDataset(loaded, numbers, names, digest_of_arrays([numbers[-1:], *looked_at], names))


def _looked_at(whole: ItemDataset) -> list[np.ndarray]:
    """Inputs and targets of some samples. Raises DataError where they are not pairs of tensors."""
    try:
        samples = whole.take(whole.numbers[:: max(1, len(whole) // LOOKED_AT)])
        return [each.numpy() for each in samples]
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if own_frames(error):
            raise
        if not len(whole) or isinstance(whole.items, Mapping):
            raise DataError("a workload's load returned an empty data set, or one whose samples "
                            "are not numbered from 0") from error
        first = whole.items[0]
        kinds = [type(each).__name__ for each in first] if isinstance(first, tuple | list) else []
        raise DataError(
            "each sample of a workload's data set must be an (input, target), tensors, arrays or "
            f"numbers of one shape, and its first is a {type(first).__name__}"
            + (f" of {' and '.join(kinds)}" if kinds else "")
            + f" ({type(error).__name__}: {first_line(error)})") from error


def require_labels(dataset: Dataset, split: str) -> None:
    """Raises DataError for a label of an ArrayDataset that none of its classes has.

    IGNORED, which torch's cross-entropy leaves out of its mean, may stand for none.
    """
    if not isinstance(dataset, ArrayDataset) or dataset.targets.dtype.kind not in "iu":
        return
    classes = len(dataset.class_names)
    outside = (dataset.targets < 0) | (dataset.targets >= classes)
    wrong = np.flatnonzero(outside & (dataset.targets != IGNORED))
    if classes and dataset.targets.ndim == 1 and len(wrong):
        raise DataError(f"sample {wrong[0]} of the {split} set has the label "
                        f"{dataset.targets[wrong[0]]}, and its {classes} classes are 0 to "
                        f"{classes - 1}; {len(wrong)} of {len(dataset)} labels are outside")


def require_same_classes(trained: Sequence[str], tested: Sequence[str], data_dir: Path) -> None:
    """Raises DataError where training and test set have other classes, or in another order."""
    if list(trained) == list(tested):
        return
    alone = [f"only the {split} set has {', '.join(only)}" for split, names, others in (
        ("training", trained, tested), ("test", tested, trained))
        if (only := [name for name in names if name not in others])]
    raise DataError(f"training and test set in {data_dir} have different classes: " + (
        "; ".join(alone) or f"{', '.join(trained)} and {', '.join(tested)}"))
