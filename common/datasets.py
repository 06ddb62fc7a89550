"""Data sets as uint8 images: CIFAR-10 (archive or image folder) and scikit-learn's digits.

Images are decoded once into a cache that all ranks of a node map into memory.

    python3 -c "from common.datasets import load_digits; print(load_digits('train').digest)"
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.epoch_plan import EpochPlan
from common.failures import DataError, first_line

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
CACHE_FORMAT = 1
Arrays = tuple[np.ndarray, np.ndarray, list[str]]


@dataclass(frozen=True)
class ImageDataset:
    """Images uint8 (n, height, width, channels), labels int64 (n,), one name per class.

    `digest` is a hash of pixels, labels and names: equal on every node that holds the same data.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.labels)


def load_cifar10(split: str, data_dir: Path) -> ImageDataset:
    """CIFAR-10's `split` ("train" or "test") from an image folder in `data_dir`, else the archive.

    The folder is `train/<class>/*.jpg|png` and `test/<class>/...`; the archive is the official
    python one, downloaded by torchvision when missing. Raises DataError in one sentence.
    """
    if (data_dir / split).is_dir():
        return load_image_folder(split, data_dir)
    archive = data_dir / "cifar-10-batches-py"
    return _cached(data_dir, f"cifar10-{split}", archive,
                   lambda: _read_cifar10_archive(split, data_dir))


def load_image_folder(split: str, data_dir: Path, size: int = 32) -> ImageDataset:
    """Any `data_dir/split/<class>/*.jpg|png`; other sizes are resized to `size` x `size` pixels.

    Labels follow the sorted class names. Raises DataError naming a broken file or an empty folder.
    """
    folder = data_dir / split
    return _cached(data_dir, f"folder-{split}-{size}", folder,
                   lambda: _read_image_folder(folder, size))


def load_digits(split: str) -> ImageDataset:
    """scikit-learn's 1,797 digits, 8x8 grey, enlarged to 32x32x3; a fixed fifth is the test set."""
    from sklearn import datasets

    digits = datasets.load_digits()
    order = EpochPlan(len(digits.target), 1).order  # the writers come one after another
    chosen = order[:359] if split == "test" else order[359:]
    grey = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    enlarged = grey.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    return _dataset(enlarged, digits.target[chosen].astype(np.int64), [str(d) for d in range(10)])


def _dataset(images: np.ndarray, labels: np.ndarray, class_names: list[str]) -> ImageDataset:
    digest = hashlib.sha256(json.dumps([list(images.shape), class_names]).encode())
    digest.update(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    return ImageDataset(images, labels, tuple(class_names), digest.hexdigest()[:16])


def _read_cifar10_archive(split: str, data_dir: Path) -> Arrays:
    try:
        from torchvision.datasets import CIFAR10
    except Exception as error:
        raise DataError(f"torchvision cannot be imported ({first_line(error)}): torch and "
                        "torchvision do not fit together, so install both at once, as "
                        "requirements.txt does") from error
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        archive = CIFAR10(str(data_dir), train=split == "train", download=True)
    except Exception as error:
        raise DataError(
            f"no CIFAR-10 in {data_dir}: it holds neither {split}/<class>/*.jpg nor a sound "
            f"cifar-10-python.tar.gz, and downloading it failed ({first_line(error)}); "
            "give --data-dir, or --workload digits-vgg11, which needs no download") from error
    return archive.data, np.asarray(archive.targets, np.int64), list(archive.classes)


def _read_image_folder(folder: Path, size: int) -> Arrays:
    class_names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [(path, label) for label, name in enumerate(class_names)
             for path in sorted((folder / name).iterdir())
             if path.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise DataError(f"{folder} holds no images; expected {folder}/<class>/*.jpg or *.png")
    images = np.empty((len(files), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(files):
        images[index] = _read_image(path, size)
    return images, np.array([label for _, label in files], np.int64), class_names


def _read_image(path: Path, size: int) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is not a readable image ({first_line(error)})") from error


# The cache: one folder per (source, state of the source) holding images.npy, labels.npy, meta.json.


def _cached(data_dir: Path, name: str, source: Path, read: Callable[[], Arrays]) -> ImageDataset:
    """The data set from its cache; decoded and cached first when `source` is new or has changed."""
    folder = _cache_root(data_dir)
    cache = folder / f"{name}-{_fingerprint(source)}"
    if not cache.is_dir():
        with _locked(folder / f"{name}.lock"):
            cache = folder / f"{name}-{_fingerprint(source)}"  # another rank may have been first
            if not cache.is_dir():
                dataset, state = _read_unchanged(source, read)
                cache = folder / f"{name}-{state}"
                _write_cache(dataset, cache)
                _drop_other_caches(folder, name, keep=cache)
    return _open_cache(cache)


def _read_unchanged(source: Path, read: Callable[[], Arrays]) -> tuple[ImageDataset, str]:
    """The data set and its source's fingerprint, read again if the source changed meanwhile.

    So a folder that is still being unpacked makes no cache that looks complete.
    """
    while True:
        before = _fingerprint(source)
        dataset = _dataset(*read())
        if _fingerprint(source) == before:
            return dataset, before


def _cache_root(data_dir: Path) -> Path:
    """A writable folder for caches: beside the data, else the user's cache folder."""
    user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "data-parallel-lesson"
    path_key = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:8]
    for folder in (data_dir / ".cache", user / path_key):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise DataError(f"neither {data_dir} nor {user} can be written, so there is no place for the "
                    "decoded images")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`: of all ranks of a node, one decodes and the rest wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint(source: Path) -> str:
    """Names, sizes and times of the source's files: cheap, and different when the source changed.

    60,000 files take about 0.2 s.
    """
    digest = hashlib.sha256(str(CACHE_FORMAT).encode())
    for folder, subfolders, _ in os.walk(source):
        subfolders.sort()
        with os.scandir(folder) as entries:
            states = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
                            for entry in entries if entry.is_file())
        digest.update(f"{os.path.relpath(folder, source)} {states}".encode())
    return digest.hexdigest()[:16]


def _write_cache(dataset: ImageDataset, cache: Path) -> None:
    """Writes beside the final place and renames, so that a cache is whole or absent."""
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache.parent))
    try:
        np.save(partial / "images.npy", dataset.images)
        np.save(partial / "labels.npy", dataset.labels)
        meta = {"class_names": dataset.class_names, "digest": dataset.digest}
        (partial / "meta.json").write_text(json.dumps(meta))
        partial.rename(cache)
    except OSError as error:
        raise DataError(f"the decoded images cannot be written to {cache.parent}: "
                        f"{error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _drop_other_caches(folder: Path, name: str, keep: Path) -> None:
    for other in folder.glob(f"{name}-*"):
        if other != keep and len(other.name) == len(keep.name):
            shutil.rmtree(other, ignore_errors=True)


def _open_cache(cache: Path) -> ImageDataset:
    try:
        meta = json.loads((cache / "meta.json").read_text())
        # Copy-on-write: torch wants writable memory, and nobody's write may reach the file.
        images = np.load(cache / "images.npy", mmap_mode="c")
        labels = np.load(cache / "labels.npy")
    except (OSError, ValueError) as error:
        raise DataError(f"the cache {cache} cannot be read ({first_line(error)}); delete it and "
                        "it is made anew") from error
    return ImageDataset(images, labels, tuple(meta["class_names"]), meta["digest"])
