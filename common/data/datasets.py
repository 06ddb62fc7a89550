"""Data sets as arrays: CIFAR-10, scikit-learn's digits, points on spirals.

Images are decoded once into a cache; see common/data/dataset_cache.py.

    python3 -c "from common.data.datasets import load_digits; print(load_digits('train').digest)"
"""

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.core.failures import DataError, first_line
from common.data.dataset import ArrayDataset, make_dataset
from common.data.dataset_cache import Arrays, cached
from common.data.epoch_plan import EpochPlan
from common.data.image_folders import folders_in, holds_classes, is_split, load_image_folder

ARCHIVE, PACKED = "cifar-10-batches-py", "cifar-10-python.tar.gz"
A_CLASS = "airplane"  # of CIFAR-10's ten


def load_cifar10(split: str, data_dir: Path) -> ArrayDataset:
    """CIFAR-10's `split` ("train" or "test") from an image folder in `data_dir`, else the archive.

    The folder is `train/<class>/*.jpg|png` and `test/<class>/...`; the archive is the official
    python one, downloaded by torchvision when missing. Raises DataError in one sentence.
    """
    if is_split(data_dir):
        return load_image_folder(split, data_dir)
    if not _has_archive(data_dir):
        _require_room_for_cifar10(data_dir)
    return cached(data_dir, f"cifar10-{split}", data_dir / ARCHIVE,
                  lambda: _read_cifar10_archive(split, data_dir))


def _has_archive(folder: Path) -> bool:
    return (folder / ARCHIVE).is_dir() or (folder / PACKED).is_file()


def _require_room_for_cifar10(data_dir: Path) -> None:
    """Raises DataError where CIFAR-10 is a level off, or something else is in its place."""
    if data_dir.is_file():
        raise DataError(f"{data_dir} is a file: give --data-dir the folder of CIFAR-10")
    above = data_dir.resolve().parent
    near = [each for each in folders_in(data_dir)
            if _has_archive(each) or (each / "train" / A_CLASS).is_dir()]
    if (_has_archive(above) if data_dir.resolve().name == ARCHIVE else
            is_split(above) and (data_dir / A_CLASS).is_dir()):
        near = [above]
    if near:
        raise DataError(f"CIFAR-10 is not in {data_dir}, but in {near[0]}: give that as --data-dir")
    if holds_classes(data_dir):
        raise DataError(f"{data_dir} holds folders of images and no CIFAR-10: --workload "
                        "image-folder trains on them, a class each; to download CIFAR-10, give "
                        "another --data-dir")


def load_digits(split: str, data_dir: Path | None = None) -> ArrayDataset:
    """scikit-learn's 1,797 digits, 8x8 grey, enlarged to 32x32x3; a fixed fifth is the test set.

    They come with scikit-learn, whatever `data_dir` is.
    """
    rows = _read_digits()
    # not in order: the writers follow one another
    chosen = _chosen(split, len(rows), len(rows) // 5)
    grey = np.round(rows[chosen, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    enlarged = grey.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    return make_dataset(enlarged, rows[chosen, -1].astype(np.int64), list("0123456789"))


def _read_digits() -> np.ndarray:
    """scikit-learn's file of digits, float64 (1797, 65): 64 pixels of 0 to 16, and the class.

    Read without importing scikit-learn, which takes each rank a second; where the file is not
    where it has always been, scikit-learn is asked.
    """
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin or "").with_name("datasets") / "data" / "digits.csv.gz" \
        if package else Path()
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn import datasets

    digits = datasets.load_digits()
    return np.hstack([digits.data, digits.target[:, None]])


def _chosen(split: str, samples: int, tested: int) -> np.ndarray:
    """`tested` fixed random ones of the samples for "test", the others for "train"; int64."""
    order = EpochPlan(samples, 1).order
    return order[:tested] if split == "test" else order[tested:]


SPIRAL_POINTS, SPIRAL_TEST_POINTS, SPIRAL_SEED, SPIRAL_NOISE = 10_000, 1_500, 42, 0.2


def load_spirals(split: str, data_dir: Path | None = None) -> ArrayDataset:
    """10,000 points on two interleaved spirals with noise, of which 1,500 are the test set.

    Points are float32, as images of one pixel: (n, 1, 1, 2). Each arm makes one turn, at a distance
    of 2 pi from the other at most; the noise has a standard deviation of 0.2. `data_dir` is unused.
    """
    generator = np.random.default_rng(SPIRAL_SEED)
    labels = np.arange(SPIRAL_POINTS) % 2
    angle = 2 * np.pi * np.sqrt(generator.random(SPIRAL_POINTS))
    radius = (2 * angle + np.pi) * np.where(labels, -1, 1)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    points += SPIRAL_NOISE * generator.standard_normal(points.shape)
    # Rounded, since libraries differ in a cosine's last bit, and nodes compare digests.
    images = np.round(points, 4).astype(np.float32).reshape(-1, 1, 1, 2)
    chosen = _chosen(split, SPIRAL_POINTS, SPIRAL_TEST_POINTS)
    return make_dataset(images[chosen], labels[chosen].astype(np.int64), ["one", "other"])


def torchvision_datasets() -> Any:
    """The module torchvision.datasets. Raises DataError where torchvision cannot be imported."""
    try:
        from torchvision import datasets
    except Exception as error:
        raise DataError(f"torchvision cannot be imported ({first_line(error)}): torch and "
                        "torchvision do not fit together, so install both at once, as "
                        "requirements.txt does") from error
    return datasets


def other_file(folder: Path, sums: Iterable[Sequence[str]]) -> Path | None:
    """The first of these files that is in `folder` with another MD5 sum than the one beside it."""
    from torchvision.datasets.utils import check_md5

    return next((folder / name for name, md5 in sums
                 if (folder / name).is_file() and not check_md5(folder / name, md5)), None)


def _read_cifar10_archive(split: str, data_dir: Path) -> Arrays:
    kind = torchvision_datasets().CIFAR10
    packed = data_dir / kind.filename
    other = other_file(data_dir / kind.base_folder, kind.train_list + kind.test_list)
    if other and (not packed.is_file() or other_file(data_dir, [(packed.name, kind.tgz_md5)])):
        raise DataError(f"{other} is not CIFAR-10's: it has another MD5 sum, so it is damaged, or "
                        f"not the official file; delete {other.parent} and it is downloaded anew, "
                        f"or give images as {data_dir}/{split}/<class>/*.png")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        archive = kind(str(data_dir), train=split == "train", download=True)
    except Exception as error:
        raise DataError(
            f"no CIFAR-10 in {data_dir}: it holds neither {split}/<class>/*.jpg nor a sound "
            f"cifar-10-python.tar.gz, and downloading it failed ({first_line(error)}); "
            "give --data-dir, or --workload digits-vgg11, which needs no download") from error
    return archive.data, np.asarray(archive.targets, np.int64), list(archive.classes)
