"""Permissions of files made from a folder of data: readable by users who can read all of it.

    python3 -m pytest tests/unit/test_dataset_cache.py
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from common.core.failures import DataError

READ, GROUP, OTHERS = 0o444, 0o040, 0o004
Entries = list[tuple[str, os.stat_result]]  # names in a folder, sorted, and what they are


def walk(source: Path) -> Iterator[tuple[str, Entries]]:
    """`source`, if there is one, and its folders, each with what is in it.

    Deeper folders hold no data. Links are followed where they lead somewhere. Hidden folders, of
    which one is the cache, do not count. Raises DataError where a folder cannot be read, or changes
    meanwhile.
    """
    folders = [os.fspath(source)] * source.is_dir()
    for folder in folders:
        try:
            entries = _entries(folder)
        except OSError as error:
            raise DataError(f"{error.filename or folder} cannot be read: {error.strerror}"
                            ) from error
        if folder == folders[0]:
            folders += [os.path.join(folder, name) for name, state in entries
                        if stat.S_ISDIR(state.st_mode) and not name.startswith(".")]
        yield folder, entries


def files_in(entries: Entries) -> Entries:
    """The entries of a folder that are not folders."""
    return [(name, state) for name, state in entries if not stat.S_ISDIR(state.st_mode)]


def _entries(folder: str) -> Entries:
    with os.scandir(folder) as items:
        return [(entry.name, _state(entry)) for entry in sorted(items, key=lambda each: each.name)]


def _state(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link that leads nowhere, or to itself
        return entry.stat(follow_symlinks=False)


def open_to_readers_of(source: Path, paths: Iterable[Path]) -> None:
    """Lets those read `paths`, which this user owns, who can read all of `source`.

    The owner may write them. They get the source's group if this user may give it to them, else
    the group cannot read them.
    """
    readable, group = _readers(source)
    for path in paths:
        with suppress(OSError):
            os.chown(path, -1, group)
        state, bits = path.stat(), readable
        if state.st_gid != group and not bits & OTHERS:
            bits &= ~GROUP
        is_folder = stat.S_ISDIR(state.st_mode)
        path.chmod(state.st_mode & 0o2000 | stat.S_IRUSR | stat.S_IWUSR | bits
                   | (stat.S_IXUSR | bits >> 2) * is_folder)


def _readers(source: Path) -> tuple[int, int]:
    """The read bits that all folders and files of `source` have, and its group.

    The group's bit counts where all are of one group, or where all others can read them anyway.
    `source` and folders above it need not exist yet.
    """
    above = next(folder for folder in source.parents if folder.exists())
    bits, groups = READ & os.stat(above).st_mode << 2, set()
    for folder, entries in walk(source):
        of_folder = os.stat(folder)
        bits &= of_folder.st_mode & of_folder.st_mode << 2  # who enters a folder needs both bits
        groups.add(of_folder.st_gid)
        for _, state in files_in(entries):
            bits &= state.st_mode
            groups.add(state.st_gid)
    if bits & OTHERS:
        bits |= GROUP
    elif len(groups) > 1:
        bits &= ~GROUP
    return bits, groups.pop() if len(groups) == 1 else os.getgid()
