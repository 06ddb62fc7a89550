"""MNIST from files in its own format, or downloaded and checked by torchvision.

    python3 PartOne/main.py --workload mnist-mlp --data-dir ~/mnist
"""

from pathlib import Path
from typing import Any

import numpy as np

from common.core.failures import DataError, first_line
from common.data.dataset import ArrayDataset
from common.data.dataset_cache import Arrays, cached
from common.data.datasets import other_file, torchvision_datasets

FIRST_FILE = "train-images-idx3-ubyte"


def load_mnist(split: str, data_dir: Path) -> ArrayDataset:
    """MNIST's `split` ("train" or "test"): images uint8 (n, 28, 28, 1).

    The files, packed with gzip or not, lie in `data_dir` or in `data_dir/MNIST/raw`, where
    torchvision keeps them; missing or packed ones are downloaded, or checked by their MD5 sums.
    Raises DataError in one sentence.
    """
    folder = _folder(data_dir)
    return cached(data_dir, f"mnist-{split}", folder, lambda: _read(split, data_dir, folder))


def _folder(data_dir: Path) -> Path:
    for folder in (data_dir, data_dir / "raw"):
        if (folder / FIRST_FILE).exists() or (folder / f"{FIRST_FILE}.gz").exists():
            return folder
    return data_dir / "MNIST" / "raw"


def _read(split: str, data_dir: Path, folder: Path) -> Arrays:
    kind: Any = type("MNIST", (torchvision_datasets().MNIST,), {"raw_folder": str(folder)})
    is_there = all((folder / name.removesuffix(".gz")).is_file() for name, _ in kind.resources)
    if not is_there and (other := other_file(folder, kind.resources)):
        raise DataError(
            f"no sound MNIST in {data_dir}: {other.name} has another MD5 sum than MNIST's, so it "
            "is damaged, or another data set; delete it and it is downloaded anew, or unpack all "
            "four files with gunzip, and they are read as they are")
    try:
        mnist = kind(str(data_dir), train=split == "train", download=True)
        images, labels = mnist.data.numpy(), mnist.targets.numpy().astype(np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images with {len(labels)} labels")
    except Exception as error:
        raise DataError(
            f"no sound MNIST in {data_dir}: " + (
                f"the files in {folder} are not in its format ({_reason(error)})" if is_there else
                f"{FIRST_FILE} and its three companions are not all there, and downloading them "
                f"into {folder} failed ({_reason(error)}); give --data-dir, or --workload "
                "digits-vgg11, which needs no download")) from error
    return images[..., None], labels, list("0123456789")


def _reason(error: Exception) -> str:
    """In one line; of torchvision's mirrors the first one's failure will do."""
    text = "\nTried".join(str(error).split("\nTried")[:2])
    return " ".join(text.split()) or first_line(error)
