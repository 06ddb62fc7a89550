"""Random folders of images with odd contents, and what plain Pillow makes of them.

    expected = write_odd_folder(folder, random.Random(7))
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

SIZE = 16
NAMES = ("ant", "été", "日本語", "a$_$b", "$x^2$", "bee\x1b]0;title\x07", "new\nline", "\u202egnp",
         b"\xff\xfe".decode(errors="surrogateescape"), "<img src=x onerror=alert(1)>", "_under",
         "a|b`c`*d*", "[x](javascript:y)", " ", "-rf", "%s{0}", "l" * 200,
         "two words", "\x85\u2028")
SUFFIXES = ("png", "jpg", "bmp", "gif", "tiff", "PNG", "ppm")
MODES = ("RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "I;16")
FORMATS_OF = {"CMYK": ("TIFF", "JPEG"), "I;16": ("PNG", "TIFF"), "1": ("PNG", "TIFF", "BMP"),
              "RGBA": ("PNG", "TIFF"), "LA": ("PNG",), "P": ("PNG", "GIF", "BMP"),
              "L": ("PNG", "JPEG", "BMP", "TIFF", "PPM"),
              "RGB": ("PNG", "JPEG", "BMP", "TIFF", "PPM")}


class Expected(NamedTuple):
    """The readable images, their labels, the classes that have one, and what cannot be read.

    Without a readable image that is the folder as well.
    """

    images: np.ndarray
    labels: list[int]
    names: list[str]
    unreadable: list[str]


def as_pillow_reads(path: Path) -> np.ndarray:
    """An image as plain Pillow has it; 16 bits of grey scaled to 8."""
    with Image.open(path) as file:
        ImageOps.exif_transpose(file, in_place=True)
        image: Image.Image = file
        if file.mode.startswith("I;16") or file.mode == "I":
            image = Image.fromarray((np.asarray(file) // 257).astype(np.uint8))
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                          if image.size != (SIZE, SIZE) else image.convert("RGB"))


def write_odd_folder(folder: Path, chance: random.Random) -> Expected:
    """Fills `folder`, which must not exist, with classes; up to three entries are not images."""
    folder.mkdir(parents=True)
    names = chance.sample(NAMES, chance.randint(1, 4))
    for name in names:
        (folder / name).mkdir()
        for index in range(chance.choice((0, 1, 1, 2, 5))):
            _write_image(folder / name, index, chance)
        for _ in range(chance.randint(0, 2)):
            chance.choice(HARMLESS)(folder / name, chance)
    if chance.random() < 0.5:
        for broken in chance.sample(BROKEN, chance.choice((1, 1, 2, 3))):
            broken(folder / chance.choice(names), chance)
    if chance.random() < 0.3:
        chance.choice(HARMLESS)(folder, chance)
    return expected_of(folder)


def expected_of(folder: Path) -> Expected:
    """The result by the rules: classes by name, images by name, without hidden ones."""
    known = {suffix for suffix, name in Image.registered_extensions().items()
             if name in Image.OPEN and name not in ("EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG")}
    images, classes, unreadable = [], [], []
    for name in sorted(os.listdir(folder)):
        if name.startswith(".") or not (folder / name).is_dir():
            continue
        for entry in sorted(os.listdir(folder / name)):
            path = folder / name / entry
            if entry.startswith(".") or path.suffix.lower() not in known:
                continue
            try:
                if not path.is_file():
                    raise ValueError
                images.append(as_pillow_reads(path))
                classes.append(name)
            except Exception:
                unreadable.append(str(path))
    names = sorted(set(classes))
    return Expected(np.stack(images) if images else np.empty(0), [*map(names.index, classes)],
                    names, unreadable if images else [*unreadable, str(folder)])


def _write_image(folder: Path, index: int, chance: random.Random, mode: str = "") -> Path:
    mode = mode or chance.choice(MODES)
    side = chance.choice((SIZE, SIZE, 1, 7, 40))
    pixels = np.random.default_rng(chance.randrange(1 << 30)).integers(
        0, 256, (side, chance.choice((side, 5)), 3), np.uint8)
    image = Image.fromarray(pixels)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
    elif mode != "RGB":
        image = image.convert(mode)
    form = chance.choice(FORMATS_OF[mode])
    # a suffix that is another format's in one of four: what counts is what is in the file
    suffix = chance.choice(SUFFIXES) if chance.random() < 0.25 else form.lower()
    name = chance.choice(("", "", "é", "a$b_", "\x1b[2J", "\n", "\udcff")) + str(index)
    path = folder / f"{name}.{suffix}"
    more = {}
    if form == "GIF" and chance.random() < 0.5:
        more = {"save_all": True, "append_images": [image.rotate(90)]}
    if form == "JPEG" and chance.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = chance.randint(1, 8)  # how the camera was held
        more = {"exif": exif}
    image.save(path, form, **more)
    return path


def _damaged(damage: Callable[[bytes, random.Random], bytes]) -> Callable[..., None]:
    def write(folder: Path, chance: random.Random) -> None:
        path = _write_image(folder, 100, chance)
        path.write_bytes(damage(path.read_bytes(), chance))
    return write


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1:]


def _socket(folder: Path, chance: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.open(folder, os.O_RDONLY)
        try:
            unix.bind(f"/proc/self/fd/{here}/s.png")
        finally:
            os.close(here)


def _sparse(folder: Path, chance: random.Random) -> None:
    (folder / "sparse.png").touch()
    os.truncate(folder / "sparse.png", 10 << 30)


def _deep(folder: Path, chance: random.Random) -> None:
    (folder / "deep" / "er" / "still").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(folder / "deep" / "er" / "still" / "0.png")


BROKEN: tuple[Callable[[Path, random.Random], None], ...] = (
    lambda folder, chance: os.mkfifo(folder / "pipe.png"),
    lambda folder, chance: os.mkfifo(folder / "50\x1b[31m.jpg"),
    lambda folder, chance: (folder / "x.png").mkdir(),
    lambda folder, chance: (folder / "nowhere.png").symlink_to(folder / "nothing"),
    lambda folder, chance: (folder / "loop.png").symlink_to(folder / "loop.png"),
    lambda folder, chance: (folder / "zero.png").symlink_to("/dev/zero"),
    lambda folder, chance: (folder / "tty.png").symlink_to("/dev/tty"),
    lambda folder, chance: (folder / "empty.png").touch(),
    lambda folder, chance: (folder / "text\n.png").write_text("error: all is well\n"),
    lambda folder, chance: (folder / "eps.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n"
                                                           "%%BoundingBox: 0 0 9 9\n"),
    _socket, _sparse,
    _damaged(lambda data, chance: data[:chance.randrange(len(data))]),
    _damaged(lambda data, chance: data[:max(1, len(data) // 2)]),
    _damaged(_flip), _damaged(_flip), _damaged(_flip),
    _damaged(lambda data, chance: data[:30] + os.urandom(40) + data[70:]))
HARMLESS: tuple[Callable[[Path, random.Random], None], ...] = (
    lambda folder, chance: (folder / ".DS_Store").write_bytes(b"\0\0"),
    lambda folder, chance: (folder / f"notes.t\x1bxt{chance.random()}").write_text("hello"),
    lambda folder, chance: (folder / "Thumbs.db").write_bytes(b"\0\0"),
    lambda folder, chance: (folder / ".hidden.png").write_bytes(b"no image"),
    lambda folder, chance: os.path.lexists(folder / "pipe") or os.mkfifo(folder / "pipe"), _deep)


def vanishing(folder: Path, seconds: float = 5.0) -> threading.Thread:
    """Starts to delete the folder's images, one after the other."""
    def delete() -> None:
        for path in sorted(folder.glob("*/*"))[::2]:
            time.sleep(seconds / 1000)
            path.unlink(missing_ok=True)
    thread = threading.Thread(target=delete, daemon=True)
    thread.start()
    return thread
