"""Folders of images, of all formats that Pillow reads, as arrays of 8-bit RGB.

    python3 PartOne/main.py --workload image-folder --data-dir ~/pets --image-size 64
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.core.console import counted
from common.core.failures import DataError, first_line
from common.data.dataset_cache import Arrays

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow names, but opens only with the help of other programs.
NOT_ALONE = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
SIXTEEN_BITS = 65535
OUTSIDE, HIDDEN, FOLDER = ("beside the classes' folders", "hidden file",
                           "folder inside a class's folder")


def read_image_folder(folder: Path, size: int) -> Arrays:
    """All images `folder/<class>/*`, uint8 (n, size, size, 3), and a note of what was left out.

    Labels follow the sorted class names. Raises DataError naming a broken file or an empty folder.
    """
    class_names = sorted(entry.name for entry in folder.iterdir()
                         if entry.is_dir() and not entry.name.startswith("."))
    suffixes, left_out = readable_suffixes(), _outside(folder)
    files = []
    for label, name in enumerate(class_names):
        for path in sorted((folder / name).iterdir()):
            if why := _why_left_out(path, suffixes):
                left_out[why] += 1
            else:
                files.append((path, label))
    if not files:
        raise DataError(f"{folder} holds no images; expected {folder}/<class>/*.jpg or *.png"
                        + (f"; {_note(left_out)}" if left_out else ""))
    images = np.empty((len(files), size, size, 3), np.uint8)
    for index, (path, _) in enumerate(counted(files, "images decoded")):
        images[index] = _read_image(path, size)
    note = f"{folder.resolve().name}: {_note(left_out)}" if left_out else ""
    return images, np.array([label for _, label in files], np.int64), class_names, note


def read_picture(path: Path, size: int, channels: int) -> np.ndarray:
    """An image file as data sets here hold it: uint8 (size, size, channels), grey or RGB.

    Raises DataError where it cannot be read.
    """
    from PIL import Image

    image = _read_image(path, size)
    return image if channels == 3 else np.asarray(Image.fromarray(image).convert("L"))[..., None]


def readable_suffixes() -> set[str]:
    """Of files that Pillow opens here, lower case: which they are depends on how it was built."""
    from PIL import Image

    return {suffix for suffix, name in Image.registered_extensions().items()
            if name in Image.OPEN and name not in NOT_ALONE}


def _outside(folder: Path) -> Counter[str]:
    files = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    return Counter({OUTSIDE: len(files)} if files else {})


def _why_left_out(path: Path, suffixes: set[str]) -> str:
    """Why a file in a class's folder is none of the images; nothing if it is one."""
    if path.name.startswith("."):
        return HIDDEN
    if path.suffix.lower() in suffixes:
        return ""
    if path.is_dir():
        return FOLDER
    return f"{path.suffix.lower() or 'without a suffix'}, which Pillow does not read"


def _note(left_out: Counter[str]) -> str:
    reasons = "; ".join(f"{why}: {count:,}" for why, count in left_out.most_common())
    return f"{sum(left_out.values()):,} left out ({reasons})"


def _read_image(path: Path, size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            scale = _white(file) / 255
            ImageOps.exif_transpose(file, in_place=True)
            image: Image.Image = file
            if scale > 1:
                image = Image.fromarray((np.asarray(file) / scale).astype(np.uint8))
            image = image.convert("RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except Exception as error:  # whatever a decoder stumbles over
        raise DataError(f"{path} is not a readable image ({first_line(error)})") from error


def _white(image: "Image.Image") -> int:
    """The value of white. Pillow would convert grey of 16 bits by cutting it off at 255."""
    if image.mode.startswith("I;16") or image.mode == "I" and image.format in ("PNG", "PPM"):
        return SIXTEEN_BITS
    if image.mode in ("I", "F"):
        raise ValueError("its values have 32 bits, and nothing says which of them is white: "
                         "convert it to 8 or 16 bits")
    return 255
