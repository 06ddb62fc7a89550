"""Folders of images, of all formats that Pillow reads, as arrays of 8-bit RGB.

    python3 PartOne/main.py --workload image-folder --data-dir ~/pets --image-size 64
"""

import os
import stat
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.core.console import counted
from common.core.failures import DataError, first_line
from common.core.files import open_file
from common.core.visible import visible
from common.data.dataset_cache import Arrays
from common.data.permissions import files_in, walk

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow names, but opens only with the help of other programs.
NOT_ALONE = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
SIXTEEN_BITS = 65535
MOST_REASONS = 8  # that are told of what was left out
MOST_UNREADABLE = 100  # files that an error lists
UNREADABLE = "not readable"
OUTSIDE, HIDDEN, FOLDER = ("beside the classes' folders", "hidden file",
                           "folder inside a class's folder")


def read_image_folder(folder: Path, size: int, skip_unreadable: bool = False) -> Arrays:
    """All images `folder/<class>/*`, uint8 (n, size, size, 3), and a note of what was left out.

    Labels follow the sorted names of the folders that hold an image. Raises DataError without
    any image, and one that lists all unreadable files unless they are to be skipped.
    """
    suffixes, left_out, folders = readable_suffixes(), Counter[str](), list[str]()
    files = []
    for place, entries in walk(folder):
        if place == os.fspath(folder):
            left_out[OUTSIDE] += sum(name[0] != "." for name, _ in files_in(entries))
            continue
        for name, state in entries:
            if why := _why_left_out(name, state, suffixes):
                left_out[why] += 1
            else:
                files.append((Path(place, name), len(folders)))
        folders.append(os.path.basename(place))
    images, numbers, unreadable = _read_images(files, size)
    if unreadable and not skip_unreadable:
        raise DataError(_complaint(unreadable, "--skip-unreadable leaves {} out"))
    classes, labels = np.unique(numbers, return_inverse=True)
    left_out[UNREADABLE] += len(unreadable)
    left_out.update(f"folder without an image, {name}" for number, name in enumerate(folders)
                    if number not in classes)
    left_out = +left_out  # what is left out nowhere is not told
    if not len(images):
        raise DataError(f"{folder} holds no images; expected {folder}/<class>/*.jpg or *.png"
                        + (f"; {_note(left_out)}" if left_out else ""))
    note = f"{folder.resolve().name}: {_note(left_out)}" if left_out else ""
    return images, labels.astype(np.int64), [folders[number] for number in classes], note


def _read_images(files: list[tuple[Path, int]], size: int
                 ) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images, uint8 (n, size, size, 3), their folders' numbers, and why others are unreadable."""
    images, numbers = np.empty((len(files), size, size, 3), np.uint8), np.empty(len(files), int)
    read, unreadable = 0, []
    for path, number in counted(files, "images decoded"):
        try:
            images[read], numbers[read] = _read_image(path, size), number
            read += 1
        except DataError as error:
            unreadable.append(str(error))
    return images[:read], numbers[:read], unreadable


def _complaint(unreadable: list[str], advice: str = "") -> str:
    """One sentence on all unreadable files; `advice` on it or them, if any."""
    if len(unreadable) == 1:
        return unreadable[0] + f"; {advice}".format("it") * bool(advice)
    more = len(unreadable) - MOST_UNREADABLE
    return (f"{len(unreadable)} files cannot be read"
            + f", and {advice}".format("them") * bool(advice) + ": "
            + "; ".join(unreadable[:MOST_UNREADABLE]) + (f"; and {more} more" if more > 0 else ""))


def read_pictures(paths: list[Path], size: int, channels: int) -> np.ndarray:
    """Image files as data sets here hold them: uint8 (n, size, size, channels), grey or RGB.

    Raises DataError, which lists all that cannot be read.
    """
    from PIL import Image

    images, _, unreadable = _read_images([(path, 0) for path in paths], size)
    if unreadable:
        raise DataError(_complaint(unreadable))
    if channels == 3:
        return images
    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    return np.stack(grey)[..., None]


def readable_suffixes() -> set[str]:
    """Suffixes of files that Pillow opens here, lower case; they depend on how it was built."""
    from PIL import Image

    formats = readable_formats()
    return {suffix for suffix, name in Image.registered_extensions().items() if name in formats}


@cache
def readable_formats() -> list[str]:
    """The formats that Pillow reads itself, whatever suffix a file has."""
    from PIL import Image

    Image.init()
    return [name for name in Image.ID if name not in NOT_ALONE]


def _why_left_out(name: str, state: os.stat_result, suffixes: set[str]) -> str:
    """The reason why an entry of a class's folder is not read as an image; "" if it is."""
    if name.startswith("."):
        return HIDDEN
    suffix = os.path.splitext(name)[1].lower()
    if suffix in suffixes:
        return ""
    if stat.S_ISDIR(state.st_mode):
        return FOLDER
    return f"{suffix}, which Pillow does not read" if suffix else "without a suffix"


def _note(left_out: Counter[str]) -> str:
    most = left_out.most_common(MOST_REASONS)
    if rest := sum(left_out.values()) - sum(count for _, count in most):
        most.append(("for other reasons", rest))
    reasons = "; ".join(f"{why}: {count:,}" for why, count in most)
    return f"{sum(left_out.values()):,} left out ({reasons})"


def _read_image(path: Path, size: int) -> np.ndarray:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with open_file(path) as opened, Image.open(opened, formats=readable_formats()) as file:
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
        why = ("Pillow knows no such format" if isinstance(error, UnidentifiedImageError)
               else getattr(error, "strerror", None) or first_line(error))
        raise DataError(f"{visible(str(path))} is not a readable image ({why})") from error


def _white(image: "Image.Image") -> int:
    """The value of white. Pillow would convert grey of 16 bits by cutting it off at 255."""
    if image.mode.startswith("I;16") or image.mode == "I" and image.format in ("PNG", "PPM"):
        return SIXTEEN_BITS
    if image.mode in ("I", "F"):
        raise ValueError("its values have 32 bits, and nothing says which of them is white: "
                         "convert it to 8 or 16 bits")
    return 255
