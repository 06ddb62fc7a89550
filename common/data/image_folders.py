"""Folders of images, one a class: a data set, or a sentence on how they must lie.

    python3 PartOne/main.py --workload image-folder --data-dir ~/pets --image-size 64
"""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.core.failures import DataError
from common.core.visible import visible
from common.data.copies import say_copies
from common.data.dataset import ArrayDataset, require_same_classes
from common.data.dataset_cache import Arrays, cached
from common.data.epoch_plan import EpochPlan
from common.data.images import describe_nothing, is_image, read_image_folder, readable_suffixes

# Names under which folders of classes are found where `train` and `test` are expected.
MEANT = {"train": ("train", "training"), "test": ("test", "testing", "val", "valid", "validation")}
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
MOST_NAMES = 8  # that a sentence lists


def load_image_folder(split: str, data_dir: Path, size: int = 32,
                      skip_unreadable: bool = False) -> ArrayDataset:
    """Any `data_dir/split/<class>/*`; other sizes are resized to `size` x `size` pixels.

    Where the classes lie in `data_dir` itself, a fixed fifth of each is the test set, an image at
    least. Labels follow the sorted class names. Raises DataError: before anything is decoded, for
    folders that do not lie as they must, with "train" those of the test set too; and for files
    that cannot be read, unless they are to be skipped.
    """
    def read(name: str, folder: Path, test: Path | None = None) -> ArrayDataset:
        def decode() -> Arrays:
            images, labels, names, note = read_image_folder(folder, size, skip_unreadable, test)
            copies = say_copies(folder, test) if name != "test" else ""
            return images, labels, names, "\n".join(filter(None, (note, copies)))
        return cached(data_dir, f"folder-{name}-{size}{'-readable' * skip_unreadable}", folder,
                      decode, test)

    _require_layout(split, data_dir)
    if split == "test" and is_split(data_dir):
        return read(split, data_dir / split)
    if is_split(data_dir):
        return _noting(_unused(data_dir), read(split, data_dir / split, data_dir / "test"))
    whole = read("all", data_dir)
    counts = np.bincount(whole.targets).tolist()
    _require_two_of_each(dict(zip(whole.class_names, counts, strict=True)), data_dir)
    here = data_dir.resolve()
    beside = [here.parent / name for name in MEANT if here.name in MEANT and name != here.name]
    return _noting([each for each in beside if holds_classes(each)],
                   whole).part(_chosen(split, whole.targets))


def _noting(unused: Sequence[Path], dataset: ArrayDataset) -> ArrayDataset:
    """The data set, whose note says also which folders are not used."""
    if not unused:
        return dataset
    line = visible(f"not used: {', '.join(map(str, unused))}")
    return replace(dataset, note="\n".join(filter(None, (line, dataset.note))))


def _chosen(split: str, labels: np.ndarray) -> np.ndarray:
    """Numbers of a fixed random fifth of each label's samples, one at least, or of the others."""
    order = EpochPlan(len(labels), 1).order
    by_label = order[np.argsort(labels[order], kind="stable")]
    classes = np.split(by_label, np.cumsum(np.bincount(labels))[:-1])
    tested = np.concatenate([each[:max(1, len(each) // 5)] for each in classes])
    return tested if split == "test" else order[~np.isin(order, tested)]


def is_split(data_dir: Path) -> bool:
    """Returns True if `data_dir` holds a training or a test set, under its name or a usual one."""
    return os.path.isdir(data_dir / "test") or "train" in _sets(data_dir)


def holds_classes(folder: Path) -> bool:
    """Returns True if a folder in `folder` holds an image."""
    return any(map(images_in, folders_in(folder)))


def folders_in(folder: Path) -> list[Path]:
    """The folders in `folder`, if that can be read, without hidden ones."""
    return [folder / name for name in _names(folder)
            if name[0] != "." and os.path.isdir(folder / name)]


def images_in(folder: Path) -> list[str]:
    """The names of the images in `folder` itself, if that can be read."""
    suffixes = readable_suffixes()
    return [name for name in _names(folder) if is_image(name, suffixes)]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it may not be read, or is not a folder
        return []


def _require_layout(split: str, data_dir: Path) -> None:
    """Raises DataError unless the folders lie as `split` needs them. Decodes nothing."""
    _require_folder(data_dir)
    if not is_split(data_dir):
        return _require_two_of_each(_classes(data_dir, is_whole=True), data_dir)
    needed, there = ("train", "test") if split == "train" else (split,), _sets(data_dir)
    if wrong := [f"{there[name].name} to {name}" for name in needed
                 if name in there and there[name].name != name]:
        raise DataError(f"{data_dir} must hold folders train and test: rename "
                        + " and ".join(wrong))
    classes = [sorted(_classes(there[name])) for name in needed if name in there]
    if missing := next((name for name in needed if name not in there), None):
        raise DataError(_without(missing, data_dir))
    require_same_classes(classes[0], classes[-1], data_dir)


def _require_folder(path: Path) -> None:
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return
    except FileNotFoundError as error:
        raise DataError(f"there is no folder {path}; expected {path}/train/<class>/*.jpg or *.png, "
                        f"and test/, or {path}/<class>/*.jpg") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    advice = ("unpack it, and give --data-dir the folder" if path.suffix.lower() in ARCHIVES else
              "give --data-dir a folder that holds a folder of images for each class")
    raise DataError(f"{path} is a file: {advice}")


def _sets(data_dir: Path) -> dict[str, Path]:
    """The folders of the training and the test set by "train" and "test", as far as there are any.

    A folder of classes with another usual name counts where the right one is missing.
    """
    found = {}
    for name, others in MEANT.items():
        usual = [path for path in folders_in(data_dir)
                 if path.name.lower() in others and holds_classes(path)]
        if os.path.isdir(data_dir / name):
            found[name] = data_dir / name
        elif usual:
            found[name] = min(usual, key=lambda path: others.index(path.name.lower()))
    return found


def _without(name: str, data_dir: Path) -> str:
    """A sentence on a set that is missing, and how to come by one."""
    others = [path.name for path in _unused(data_dir)]
    there = data_dir / ("train" if name == "test" else "test")
    has_train = name == "test" and holds_classes(there)
    return (f"there is no {data_dir / name}" + f", but there is {', '.join(others)}" * bool(others)
            + ": it needs a folder of images for each class" + f", as {there} has" * has_train
            + f"; or give --data-dir {there}, of which a fifth is then the test set" * has_train)


def _unused(data_dir: Path) -> list[Path]:
    """The folders beside `train` and `test` that hold images too."""
    return [path for path in folders_in(data_dir)
            if path.name not in MEANT and (images_in(path) or holds_classes(path))]


def _classes(folder: Path, is_whole: bool = False) -> dict[str, int]:
    """The number of images in each class's folder; `folder` `is_whole` if the test set is in it.

    Raises DataError where there are none, or images of some lie deeper than in a class's folder.
    """
    inside = folders_in(folder)
    for path in inside:
        if not os.access(path, os.R_OK | os.X_OK):
            raise DataError(f"{path} cannot be read: {os.strerror(errno.EACCES)}")
    counts = {path.name: len(names) for path in inside if (names := images_in(path))}
    deeper = [path for path in inside if path.name not in counts
              and (holds_classes(path) or is_split(path))]
    if not counts:
        raise DataError(_no_classes(folder, deeper * is_whole))
    if deeper:
        raise DataError(
            f"{deeper[0]} holds folders of images, and {folder / min(counts)} holds images, as a "
            "class does: " + f"give --data-dir {deeper[0]}, or " * is_whole
            + f"put the images of {deeper[0].name} into that folder itself, or move it away")
    return counts


def _no_classes(folder: Path, deeper: Sequence[Path]) -> str:
    """A sentence on a folder without classes; `deeper` are those that are one level off."""
    if deeper:
        return (f"{folder} holds no images in the folders in it, but deeper: give --data-dir "
                + " or ".join(map(str, deeper[:MOST_NAMES])))
    if images_in(folder):
        above = folder.resolve().parent
        siblings = [path for path in folders_in(above) if images_in(path)]
        if above.name in MEANT:
            above = above.parent
        advice = "give it another name" if folder.name in MEANT else f"give --data-dir {above}"
        return (f"{folder} holds images and no folders of them: put them into a folder for each "
                "class" + f", or, if it is a class itself, {advice}" * (len(siblings) > 1))
    if os.path.exists(folder / "metrics_rank0.jsonl"):
        return f"{folder} holds no images; it is a run's folder: give that of the images"
    return describe_nothing(folder)


def _require_two_of_each(counts: Mapping[str, int], data_dir: Path) -> None:
    """Raises DataError for classes of which nothing would be left to train on or to test with."""
    if few := [name for name, count in counts.items() if count < 2]:
        raise DataError(f"{data_dir} has one image only of {', '.join(few)}: a fifth of each class "
                        "is the test set, so give two or more of each, or folders train and test")
