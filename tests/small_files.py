"""Data for the companion workloads, written small: MNIST's own format, and folders of images."""

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image

MNIST_NAMES = {"train": "train", "test": "t10k"}


def write_mnist(folder: Path, images: np.ndarray, labels: np.ndarray, split: str,
                packed: bool = False) -> None:
    """Images uint8 (n, 28, 28) and labels (n,) as MNIST's two files of `split`, in `folder`.

    The format (LeCun, Cortes and Burges): a magic number whose last byte counts the dimensions,
    their sizes, all as big-endian 32-bit numbers, then the bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images", images), ("labels", labels)):
        name = f"{MNIST_NAMES[split]}-{kind}-idx{array.ndim}-ubyte"
        data = (struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
                + array.astype(np.uint8).tobytes())
        path = folder / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(data) if packed else data)


def digits_as_mnist(folder: Path, train: int = 1437, test: int = 360) -> None:
    """scikit-learn's digits, 8x8, enlarged to 24x24 in a frame of 28x28, as MNIST's files."""
    from sklearn import datasets

    digits = datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    images = np.pad(grey.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    order = np.random.default_rng(0).permutation(len(images))
    for split, chosen in (("train", order[:train]), ("test", order[len(order) - test:])):
        write_mnist(folder, images[chosen], digits.target[chosen], split)


def write_image_folder(folder: Path, count: int, size: int = 32,
                       names: tuple[str, ...] = ("ant", "bee")) -> None:
    """`count` random images of each class, later ones brighter, `folder/<class>/N.png`."""
    generator = np.random.default_rng(count)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = generator.integers(0, 128, (size, size, 3), dtype=np.uint8)
            pixels += 127 * label // (len(names) - 1)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
