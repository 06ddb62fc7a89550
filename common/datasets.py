"""Data sets as uint8 images: CIFAR-10 (archive or image folder) and scikit-learn's digits.

Images are decoded once into a cache; see common/dataset_cache.py.

    python3 -c "from common.datasets import load_digits; print(load_digits('train').digest)"
"""

from pathlib import Path

import numpy as np

from common.dataset_cache import Arrays, ImageDataset, cached, make_dataset
from common.epoch_plan import EpochPlan
from common.failures import DataError, first_line

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}


def load_cifar10(split: str, data_dir: Path) -> ImageDataset:
    """CIFAR-10's `split` ("train" or "test") from an image folder in `data_dir`, else the archive.

    The folder is `train/<class>/*.jpg|png` and `test/<class>/...`; the archive is the official
    python one, downloaded by torchvision when missing. Raises DataError in one sentence.
    """
    if (data_dir / split).is_dir():
        return load_image_folder(split, data_dir)
    archive = data_dir / "cifar-10-batches-py"
    return cached(data_dir, f"cifar10-{split}", archive,
                   lambda: _read_cifar10_archive(split, data_dir))


def load_image_folder(split: str, data_dir: Path, size: int = 32) -> ImageDataset:
    """Any `data_dir/split/<class>/*.jpg|png`; other sizes are resized to `size` x `size` pixels.

    Labels follow the sorted class names. Raises DataError naming a broken file or an empty folder.
    """
    folder = data_dir / split
    return cached(data_dir, f"folder-{split}-{size}", folder,
                   lambda: _read_image_folder(folder, size))


def load_digits(split: str) -> ImageDataset:
    """scikit-learn's 1,797 digits, 8x8 grey, enlarged to 32x32x3; a fixed fifth is the test set."""
    from sklearn import datasets

    digits = datasets.load_digits()
    order = EpochPlan(len(digits.target), 1).order  # the writers come one after another
    chosen = order[:359] if split == "test" else order[359:]
    grey = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    enlarged = grey.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    return make_dataset(enlarged, digits.target[chosen].astype(np.int64), list("0123456789"))


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
