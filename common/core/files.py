"""Files that somebody names: read where they are regular files of a bearable size, else refused.

A named pipe, a terminal or a device blocks whoever opens it, or never ends. All functions raise
OSError with the reason in words; those that decode raise ValueError besides.

    python3 -c "from common.core.files import *; read_bytes('/dev/zero')"
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 1 << 30  # of a file that is read as a whole, checkpoints excepted
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
          (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def open_file(path: Path | str) -> BinaryIO:
    """The regular file at `path`, open for reading; never waits for whoever writes to it."""
    _require_regular(os.stat(path).st_mode)  # first: opening a device may have effects
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _require_regular(os.fstat(file.fileno()).st_mode)  # it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def read_bytes(path: Path | str) -> bytes:
    """The contents of the file at `path`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has {size / 1e9:.1f} GB, which is too much")
        return file.read()


def read_text(path: Path | str) -> str:
    """The contents of the UTF-8 file at `path`; its lines end as in the file."""
    return read_bytes(path).decode()


def read_json(path: Path | str) -> Any:
    """The value in the JSON file at `path`."""
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes) -> Any:
    """Parses JSON like json.loads, but raises ValueError for any text that it cannot read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def replace_file(path: Path, contents: bytes) -> None:
    """Writes beside `path` and renames: whoever reads meanwhile gets the old file or the new one.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(contents)
    partial.replace(path)


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "of another kind")
        raise OSError(errno.EINVAL, f"it is {kind}, and a file is needed")
