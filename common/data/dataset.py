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

from common.core.failures import DataError, Failure, UsageError, first_line, named
from common.core.random_numbers import own_draws, seed_sample
from common.core.visible import lookalikes
from common.data.epoch_plan import mix
from common.settings.user_code import own_errors, own_frames

if TYPE_CHECKING:
    from common.data.rows_on_disk import RowsOnDisk

Numbers = np.ndarray | Sequence[int]
LOOKED_AT = 64
IGNORED = -100
MOST_PARTS = 4  # of a sample that are told
PIECE = 1024  # rows that are hashed at a time
UNREPEATABLE = " and drawn anew"  # behind a digest
DRAWN_ANEW = ("warning: sample 0 is another one when it is read again, as its data set draws from "
              "a generator of its own, or changes something between two reads (a counter, a list): "
              "other ranks, a resumed run and the same command may learn something else. Drawn "
              "from torch, numpy.random or random alone, it would be the same")


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
    augmentation does, it draws the same on any rank, in any process, and after a resume. `shapes`
    are those of a sample's input and target, known once some were looked at; `split` is for errors.
    """

    items: torch.utils.data.Dataset
    numbers: np.ndarray
    class_names: tuple[str, ...]
    digest: str
    note: str = ""
    split: str = "training"
    shapes: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, chosen: Numbers, draw: int = 0) -> tuple[Tensor, Tensor]:
        numbers = self.numbers[chosen].tolist()
        with own_draws():
            samples = [self._fetch(each, draw) for each in numbers]
        try:
            inputs, targets = default_collate(samples)
            shapes = inputs.shape[1:], targets.shape[1:]
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise self._misfit(numbers, samples, draw, error) from error
        if self.shapes and shapes != self.shapes:
            raise self._misfit(numbers, samples, draw)
        _require_labels(targets.numpy(), numbers, len(self.class_names), self.split)
        return inputs, targets

    def _fetch(self, number: int, draw: int) -> Any:
        """Sample `number`. Raises UsageError, which names it."""
        seed_sample(mix(draw, number))
        reading = f"reading sample {number} of the {self.split} set"
        try:
            with own_errors(lambda error: False, f"{reading}: "):
                return self.items[number]
        except Failure:
            raise
        except Exception as error:
            raise UsageError(f"{reading} fails: {named(error)}") from error

    def _misfit(self, numbers: Sequence[int], samples: Sequence[Any], draw: int,
                error: Exception | None = None) -> UsageError:
        """The error that names the first of `samples` that is not of sample 0's form."""
        with own_draws():
            first = _form(self._fetch(0, draw))
        for number, form in zip(numbers, map(_form, samples), strict=True):
            if form != first:
                return UsageError(f"sample {number} of the {self.split} set is {form}, and sample "
                                  f"0 is {first}: all must be alike")
        reason = f" ({named(error)})" if isinstance(error, RuntimeError | TypeError) else ""
        return UsageError(f"each sample of the {self.split} set must be an (input, target), "
                          f"tensors, arrays or numbers of one shape, and is {first}{reason}")

    def part(self, chosen: np.ndarray) -> "ItemDataset":
        return replace(self, numbers=self.numbers[chosen], digest=_digest_of_part(self, chosen))


def _form(sample: Any) -> str:
    """Kinds and shapes of a sample, in words: (Tensor (3, 16, 16), int)."""
    if isinstance(sample, tuple | list) and len(sample) <= MOST_PARTS:
        return f"({', '.join(map(_kind, sample))})"
    return _kind(sample)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" {tuple(shape)}" if isinstance(shape, tuple) else "")


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
        raise DataError("it returned what is no array of numbers "
                        f"({first_line(error)})") from error
    return array


def as_dataset(loaded: Any, split: str = "training") -> Dataset:
    """Converts the result of a workload's `load` to a data set, the `split` set.

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
        raise DataError(f"it returned {type(loaded).__name__}: that must be (inputs, targets), or "
                        "a torch Dataset with __getitem__ and __len__")
    numbers, names = np.arange(_length(loaded)), _names(getattr(loaded, "classes", ()))
    if not len(numbers) or isinstance(loaded, Mapping):
        raise DataError("it returned an empty data set, or one whose samples are not numbered from "
                        "0")
    whole = ItemDataset(loaded, numbers, names, "", split=split)
    looked_at = _looked_at(whole)
    whole = replace(whole, shapes=tuple(each.shape[1:] for each in looked_at))
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
    """Inputs and targets of some samples."""
    try:
        samples = whole.take(whole.numbers[:: max(1, len(whole) // LOOKED_AT)])
        return [each.numpy() for each in samples]
    except (RuntimeError, TypeError) as error:
        raise DataError("samples must be on the CPU, without gradients, and of a dtype that numpy "
                        f"has ({first_line(error)})") from error


def require_labels(dataset: Dataset, split: str) -> None:
    """Raises UsageError for a label of an ArrayDataset that none of its classes has."""
    if isinstance(dataset, ArrayDataset):
        _require_labels(dataset.targets, range(len(dataset)), len(dataset.class_names), split)


def _require_labels(targets: np.ndarray, numbers: Numbers, classes: int, split: str) -> None:
    """Raises UsageError naming a sample, by its place in `numbers`, with a label of no class.

    IGNORED, which torch's cross-entropy leaves out of its mean, may stand for none.
    """
    if not classes or targets.ndim != 1 or targets.dtype.kind not in "iu":
        return
    wrong = np.flatnonzero(((targets < 0) | (targets >= classes)) & (targets != IGNORED))
    if len(wrong):
        raise UsageError(f"sample {numbers[wrong[0]]} of the {split} set has the label "
                        f"{targets[wrong[0]]}, and its {classes} classes are 0 to {classes - 1}")


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
