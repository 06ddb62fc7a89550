"""Samples by number: what loaders, proof and evaluation ask of a data set.

    python3 -c "from common.data.datasets import load_digits; print(load_digits('train').take([0]))"
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from common.core.failures import DataError, UsageError, first_line
from common.core.random_numbers import own_draws, seed_sample
from common.core.visible import lookalikes
from common.data.epoch_plan import mix
from common.settings.user_code import own_frames

if TYPE_CHECKING:
    from common.data.rows_on_disk import RowsOnDisk

Numbers = np.ndarray | Sequence[int]
LOOKED_AT = 64
IGNORED = -100
PIECE = 1024  # rows that are hashed at a time
UNREPEATABLE = " and drawn anew"  # behind a digest
DRAWN_ANEW = ("warning: sample 0 is another one when it is read again, as its data set draws from "
              "a generator of its own: other ranks, a resumed run and the same command learn "
              "something else. Drawn from torch, numpy.random or random, it would be the same")


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

    def take(self, chosen: Numbers, draw: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the `chosen` samples, (n, ...) each, as new tensors.

        A sample that draws random numbers draws those of `draw` and its own number.
        """

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

    def take(self, chosen: Numbers, draw: int = 0) -> tuple[Tensor, Tensor]:
        # numpy copies an image in one piece, torch a byte at a time: 15 times as long
        return torch.from_numpy(self.inputs[chosen]), torch.from_numpy(self.targets[chosen])

    def part(self, chosen: np.ndarray) -> "ArrayDataset":
        return ArrayDataset(self.inputs[chosen], self.targets[chosen], self.class_names,
                            _digest_of_part(self, chosen), self.note)


@dataclass(frozen=True)
class ItemDataset:
    """A torch Dataset, whose samples are fetched when they are wanted: for what fills no memory.

    `items[i]` is (input, target): tensors, arrays or numbers, of equal shapes. `digest` is of the
    number of samples and a few of them. Where a sample draws from torch, numpy.random or random, as
    augmentation does, it draws the same on any rank, in any process, and after a resume.
    """

    items: torch.utils.data.Dataset
    numbers: np.ndarray
    class_names: tuple[str, ...]
    digest: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, chosen: Numbers, draw: int = 0) -> tuple[Tensor, Tensor]:
        with own_draws():
            samples = [self._fetch(int(self.numbers[each]), draw) for each in chosen]
        inputs, targets = default_collate(samples)
        if wrong := _wrong_label(targets.numpy(), self.numbers[chosen], len(self.class_names)):
            raise UsageError(wrong)
        return inputs, targets

    def _fetch(self, number: int, draw: int) -> Any:
        seed_sample(mix(draw, number))
        return self.items[number]

    def part(self, chosen: np.ndarray) -> "ItemDataset":
        return ItemDataset(self.items, self.numbers[chosen], self.class_names,
                           _digest_of_part(self, chosen), self.note)


def _digest_of_part(whole: Dataset, chosen: np.ndarray) -> str:
    digest = hashlib.sha256(whole.digest.encode() + chosen.tobytes()).hexdigest()[:16]
    return digest + UNREPEATABLE * (not is_repeatable(whole.digest))


def is_repeatable(digest: str) -> bool:
    """Returns False for the digest of a data set whose samples differ when they are read again."""
    return not digest.endswith(UNREPEATABLE)


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
            raise DataError(f"there are {len(inputs)} inputs and {len(targets)} targets")
        if not len(inputs):
            raise DataError("the data set is empty: there are no inputs and no targets")
        return make_dataset(inputs, targets, _names(loaded[2] if len(loaded) == 3 else ()))
    if not (hasattr(loaded, "__getitem__") and hasattr(loaded, "__len__")):
        raise DataError(f"a workload's load returned {type(loaded).__name__}: it must be (inputs, "
                        "targets), or a torch Dataset with __getitem__ and __len__")
    numbers, names = np.arange(_length(loaded)), _names(getattr(loaded, "classes", ()))
    whole = ItemDataset(loaded, numbers, names, "")
    looked_at = _looked_at(whole)
    if any(first.tobytes() != again.numpy().tobytes()
           for (first, *_), (again, *_) in zip(looked_at, whole.take([0]), strict=True)):
        return replace(whole, digest=digest_of_arrays([numbers[-1:]], names) + UNREPEATABLE,
                       note=DRAWN_ANEW)
    return replace(whole, digest=digest_of_arrays([numbers[-1:], *looked_at], names))


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise DataError(f"class names must be a list of texts, and are {names!r}")
    return tuple(map(str, names))


def _length(loaded: Any) -> int:
    try:
        return len(loaded)
    except TypeError as error:
        if own_frames(error):
            raise
        raise DataError(f"len() of a workload's data set fails ({first_line(error)}): its __len__ "
                        "must return the number of samples, an int") from error


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
    """Raises DataError for a label of an ArrayDataset that none of its classes has."""
    if isinstance(dataset, ArrayDataset) and (wrong := _wrong_label(
            dataset.targets, range(len(dataset)), len(dataset.class_names),
            f"of the {split} set ")):
        raise DataError(wrong)


def _wrong_label(targets: np.ndarray, numbers: Numbers, classes: int, of: str = "") -> str:
    """A sentence on the first sample, by its place in `numbers`, with a label of no class, or "".

    IGNORED, which torch's cross-entropy leaves out of its mean, may stand for none.
    """
    if not classes or targets.ndim != 1 or targets.dtype.kind not in "iu":
        return ""
    wrong = np.flatnonzero(((targets < 0) | (targets >= classes)) & (targets != IGNORED))
    if not len(wrong):
        return ""
    return (f"sample {numbers[wrong[0]]} {of}has the label {targets[wrong[0]]}, and its {classes} "
            f"classes are 0 to {classes - 1}; {len(wrong)} of {len(targets)} labels are outside")


def require_same_classes(trained: Sequence[str], tested: Sequence[str], data_dir: Path) -> None:
    """Raises DataError where training and test set have other classes, or in another order."""
    if list(trained) == list(tested):
        return
    alone = [f"only the {split} set has {', '.join(only)}" for split, names, others in (
        ("training", trained, tested), ("test", tested, trained))
        if (only := [name for name in names if name not in others])]
    raise DataError(f"training and test set in {data_dir} have different classes: " + (
        "; ".join(alone) or f"{', '.join(trained)} and {', '.join(tested)}")
        + lookalikes(trained, tested))
