"""Folders of images, of all formats that Pillow reads, as arrays of 8-bit RGB.

    python3 PartOne/main.py --workload image-folder --data-dir ~/pets --image-size 64
"""

import os
import stat
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from common.core.console import counted
from common.core.failures import DataError, first_line
from common.core.files import open_file
from common.core.visible import visible
from common.data.permissions import files_in, walk

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow names, but opens only with the help of other programs.
NOT_ALONE = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
SIXTEEN_BITS = 65535
MOST_REASONS = 8  # that are told of what was left out
MOST_UNREADABLE = 100  # files that an error lists
UNREADABLE = "not readable"
OUTSIDE, HIDDEN = "beside the classes' folders", "hidden file"
NESTED, HIDDEN_FOLDER = "image deeper than in a class's folder", "image in the hidden folder"
DANGLING = "link that cannot be followed"


class Found(NamedTuple):
    """The image files of all classes, each with its folder's number, and what is left out."""

    files: list[tuple[Path, int]]
    folders: list[str]
    left_out: Counter[str]


def read_image_folder(folder: Path, size: int, skip_unreadable: bool = False,
                      other: Path | None = None
                      ) -> tuple[np.ndarray, np.ndarray, list[str], str]:
    """All images `folder/<class>/*`, uint8 (n, size, size, 3), and a note of what was left out.

    Labels follow the sorted names of the folders that hold an image. Raises DataError without
    any image, and one that lists all unreadable files unless they are to be skipped, those of the
    `other` folder too.
    """
    files, folders, left_out = find_images(folder)
    images, numbers, unreadable, transparent = _read_images(files, size)
    if unreadable and not skip_unreadable:
        unreadable += _read_images(find_images(other).files, size).unreadable if other else []
        raise DataError(_complaint(unreadable, "--skip-unreadable leaves {} out"))
    classes, labels = np.unique(numbers, return_inverse=True)
    left_out[UNREADABLE] += len(unreadable)
    note = _note(left_out, [name for number, name in enumerate(folders) if number not in classes],
                 transparent)
    if not len(images):
        raise DataError(_nothing(folder, note))
    note = f"{visible(folder.resolve().name)}: {note}" if note else ""
    return images, labels.astype(np.int64), [folders[number] for number in classes], note


def find_images(folder: Path) -> Found:
    """The files `folder/<class>/*` that are images by their suffix; none is opened."""
    suffixes, found, nested = readable_suffixes(), Found([], [], Counter()), Counter[str]()
    for place, entries in walk(folder):
        if place == os.fspath(folder):
            found.left_out.update(DANGLING if stat.S_ISLNK(state.st_mode) else OUTSIDE
                                  for name, state in files_in(entries) if name[0] != ".")
            for name, state in entries:
                if name[0] == "." and stat.S_ISDIR(state.st_mode):
                    found.left_out[f"{HIDDEN_FOLDER} {name}"] = _images_below(place, name)
            continue
        for name, state in entries:
            if is_image(name, suffixes):
                found.files.append((Path(place, name), len(found.folders)))
            elif stat.S_ISDIR(state.st_mode):
                nested[f"{os.path.basename(place)}/{name}"] = _images_below(place, name)
            else:
                found.left_out[_why_left_out(name, state)] += 1
        found.folders.append(os.path.basename(place))
    for most, _ in nested.most_common(1):
        found.left_out[f"{NESTED}, as in {most}"] = nested.total()
    return found


def describe_nothing(folder: Path) -> str:
    """A sentence on a folder without an image, and on what it holds instead."""
    _, folders, left_out = find_images(folder)
    return _nothing(folder, _note(left_out, folders, 0))


def _nothing(folder: Path, note: str) -> str:
    return (f"{folder} holds no images; expected {folder}/<class>/*.jpg or *.png"
            + f"; {note}" * bool(note))


def _images_below(place: str, name: str) -> int:
    """The number of images in a folder of `place`, at any depth; links are not followed."""
    suffixes, folder = readable_suffixes(), os.path.join(place, name)
    return 0 if os.path.islink(folder) else sum(
        is_image(each, suffixes) for _, _, names in os.walk(folder) for each in names)


class Read(NamedTuple):
    """Images, uint8 (n, size, size, 3), their folders' numbers, and why others are unreadable.

    `transparent` is the number of those that are not opaque everywhere.
    """

    images: np.ndarray
    numbers: np.ndarray
    unreadable: list[str]
    transparent: int


def _read_images(files: list[tuple[Path, int]], size: int) -> Read:
    images, numbers = np.empty((len(files), size, size, 3), np.uint8), np.empty(len(files), int)
    read, unreadable, transparent = 0, [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's do not say of which file they are
        for path, number in counted(files, "images decoded"):
            try:
                images[read], is_transparent = _read_image(path, size)
                numbers[read] = number
                read, transparent = read + 1, transparent + is_transparent
            except DataError as error:
                unreadable.append(str(error))
    return Read(images[:read], numbers[:read], unreadable, transparent)


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

    images, _, unreadable, _ = _read_images([(path, 0) for path in paths], size)
    if unreadable:
        raise DataError(_complaint(unreadable))
    if channels == 3:
        return images
    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    return np.stack(grey)[..., None]


def is_readable(path: Path) -> bool:
    """Returns True if the file is an image."""
    return not _read_images([(path, 0)], 1).unreadable


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


def is_image(name: str, suffixes: set[str]) -> bool:
    """Returns True if a file of this name is taken for an image."""
    return name[0] != "." and os.path.splitext(name)[1].lower() in suffixes


def _why_left_out(name: str, state: os.stat_result) -> str:
    """The reason why a file in a class's folder is not taken for an image."""
    if name.startswith("."):
        return HIDDEN
    if stat.S_ISLNK(state.st_mode):
        return DANGLING
    suffix = os.path.splitext(name)[1].lower()
    return f"{suffix}, which Pillow does not read" if suffix else "without a suffix"


def _note(left_out: Counter[str], empty: list[str], transparent: int) -> str:
    """One line on the files that were left out, the folders that are no classes, and alpha."""
    files, most = left_out.total(), (+left_out).most_common(MOST_REASONS)  # none of 0
    if rest := files - sum(count for _, count in most):
        most.append(("for other reasons", rest))
    reasons = "; ".join(f"{why}: {count:,}" for why, count in most)
    more = f" and {len(empty) - MOST_REASONS} more" * (len(empty) > MOST_REASONS)
    return visible("; ".join(filter(None, (
        f"{files:,} file{'s' * (files > 1)} left out ({reasons})" * bool(files),
        f"folders without an image: {', '.join(empty[:MOST_REASONS])}{more}" * bool(empty),
        f"images that lose their transparency: {transparent:,}" * bool(transparent)))))


def _read_image(path: Path, size: int) -> tuple[np.ndarray, bool]:
    """The image, uint8 (size, size, 3), and whether transparency was dropped to get it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with open_file(path) as opened, Image.open(opened, formats=readable_formats()) as file:
            scale = _white(file) / 255
            ImageOps.exif_transpose(file, in_place=True)
            image: Image.Image = file
            is_transparent = scale == 1 and _is_transparent(file)
            if scale > 1:
                image = Image.fromarray((np.asarray(file) / scale).astype(np.uint8))
            image = image.convert("RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image), is_transparent
    except Exception as error:  # whatever a decoder stumbles over
        why = (f"it is a link to {visible(os.path.realpath(path))}, which is not there"
               if isinstance(error, FileNotFoundError) and os.path.islink(path) else
               _unidentified(path) if isinstance(error, UnidentifiedImageError) else
               "it is too large for Pillow: make it smaller"
               if isinstance(error, Image.DecompressionBombError) else
               getattr(error, "strerror", None) or first_line(error))
        raise DataError(f"{visible(str(path))} is not a readable image ({why})") from error


def _unidentified(path: Path) -> str:
    return ("it is empty" if not os.path.getsize(path) else
            "its contents are of no image format that Pillow reads, whatever its name says")


def _is_transparent(image: "Image.Image") -> bool:
    """Returns True if some pixel is not opaque."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return False
    return bool((np.asarray(image.convert("RGBA").getchannel("A")) < 255).any())


def _white(image: "Image.Image") -> int:
    """The value of white. Pillow would convert grey of 16 bits by cutting it off at 255."""
    if image.mode.startswith("I;16") or image.mode == "I" and image.format in ("PNG", "PPM"):
        return SIXTEEN_BITS
    if image.mode in ("I", "F"):
        raise ValueError("its values have 32 bits, and nothing says which of them is white: "
                         "convert it to 8 or 16 bits")
    return 255
