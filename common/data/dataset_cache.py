"""Decoded images on disk, whose rows all ranks of a node read.

One folder per source and state of the source, holding images.npy, labels.npy and meta.json. It is
built once, under a lock, and appears whole or not at all. Who can read all of the source can read
the cache beside it; a user who cannot, or cannot write there, has one in a folder of the user's, as
has one whose disk there is full.
Another user's cache is believed where that user owns the source.
"""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from common.core.failures import DataError, first_line
from common.core.files import open_file, read_json
from common.data.dataset import ArrayDataset, digest_of_arrays, make_dataset
from common.data.permissions import open_to_readers_of, walk
from common.data.rows_on_disk import RowsOnDisk, state_of

CACHE_FORMAT = 2
MOST_READINGS = 5  # of a source that changes meanwhile
ABANDONED_SECONDS = 86400.0  # after them nobody is still writing a cache
IMAGES, LABELS, META = "images.npy", "labels.npy", "meta.json"
Arrays = tuple[np.ndarray, np.ndarray, list[str]] | tuple[np.ndarray, np.ndarray, list[str], str]


def cached(data_dir: Path, name: str, source: Path, read: Callable[[], Arrays],
           compared: Path | None = None) -> ArrayDataset:
    """The data set from its cache; decoded and cached first when `source` is new or has changed.

    `read` returns images, labels, class names and, where there is one, the data set's note. What it
    returns depends on the folder that is `compared` too, if any.
    """
    sources = [source, *filter(None, [compared])]
    state = _fingerprint(sources)
    if cache := _usable(data_dir, source, f"{name}-{state}"):
        return _open_cache(cache)
    roots = _writable_roots(data_dir, source, f"{name}-{state}")
    folder, is_new = next(roots, (None, False))
    if folder is None:
        raise DataError(f"neither {data_dir} nor the user's cache folder nor "
                        f"{tempfile.gettempdir()} can be written, so there is no place for the "
                        "decoded images")
    with _locked(folder / f"{name}.lock") as is_locked:
        if is_locked:
            _remove_partial(folder, name)
        cache = _usable(data_dir, source, f"{name}-{_fingerprint(sources)}")
        if cache is None:  # else another rank was first
            dataset, state = _read_unchanged(sources, read)
            cache = _write_to_one(chain([folder], (root for root, _ in roots)), dataset, data_dir,
                                  source, name, state)
        if is_new and _is_beside(folder, data_dir):
            open_to_readers_of(source, [folder])  # again: `read` may have downloaded the source
    if not _is_usable(cache, _owners(source)):  # another user's was faster
        return cached(data_dir, name, source, read, compared)
    return _open_cache(cache)


def _read_unchanged(sources: Sequence[Path], read: Callable[[], Arrays]
                    ) -> tuple[ArrayDataset, str]:
    """The data set and its sources' fingerprint, read again if they changed meanwhile.

    So a folder that is still being unpacked makes no cache that looks complete. Raises DataError
    for a folder that never stays as it is.
    """
    for _ in range(MOST_READINGS):
        before = _fingerprint(sources)
        dataset = make_dataset(*read())
        if _fingerprint(sources) == before:
            return dataset, before
    raise DataError(f"{sources[0]} changed while it was read, {MOST_READINGS} times: wait until "
                    "nobody writes there")


def _cache_roots(data_dir: Path, source: Path) -> Iterator[Path]:
    """Where a cache may be: beside the data, else in the user's cache folder, else a temporary.

    Not among the folders of classes, where other programs would take it for one.
    """
    if source != data_dir:
        yield data_dir / ".cache"
    path_key = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:8]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(home) / "data-parallel-training" / path_key
    own = Path(tempfile.gettempdir()) / f"data-parallel-training-{os.getuid()}"
    if not own.exists() or own.stat().st_uid == os.getuid():  # else somebody lies in wait
        yield own / path_key


def _is_beside(root: Path, data_dir: Path) -> bool:
    return root.parent == data_dir


def _owners(source: Path) -> set[int]:
    """The users whose caches are believed: this one, root, and the owner of the source."""
    with suppress(OSError):
        return {os.getuid(), 0, source.stat().st_uid}
    return {os.getuid(), 0}


def _is_usable(cache: Path, owners: set[int]) -> bool:
    """Returns True if the cache exists, belongs to one of the `owners`, and may be read."""
    try:
        return bool(os.listdir(cache)) and cache.stat().st_uid in owners
    except OSError:
        return False


def _usable(data_dir: Path, source: Path, name: str) -> Path | None:
    """The cache called `name` in the first root that has one which may be used."""
    caches = (root / name for root in _cache_roots(data_dir, source))
    return next((cache for cache in caches if _is_usable(cache, _owners(source))), None)


def _writable_roots(data_dir: Path, source: Path, name: str) -> Iterator[tuple[Path, bool]]:
    """The roots that can be written, and have no cache called `name` that is not usable.

    And whether this call has made them: each is made when it is asked for.
    """
    for folder in _cache_roots(data_dir, source):
        try:
            is_new = _make_root(folder, source if _is_beside(folder, data_dir) else None)
        except OSError:
            continue
        is_taken = os.path.lexists(folder / name) and not _is_usable(folder / name,
                                                                    _owners(source))
        if os.access(folder, os.W_OK) and not is_taken:
            yield folder, is_new


def _make_root(folder: Path, source: Path | None) -> bool:
    """Makes `folder`; returns False if it existed already."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    if source is not None:
        open_to_readers_of(source, [folder])
    return True


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds an exclusive lock on `path`: of all ranks of a node, one decodes and the rest wait.

    Whether it is held: on a file system without locks they all decode, and the first to finish
    wins; so do two users, of whom one may not read the other's file. Whoever has held it removes
    the file, and the folder around it if that is empty.
    """
    with ExitStack() as held:
        is_locked = False
        with suppress(OSError):
            while not is_locked:
                file = held.enter_context(_lock_file(path))
                fcntl.flock(file, fcntl.LOCK_EX)
                is_locked = _is_at(path, file)  # else it was removed while this process waited
        try:
            yield is_locked
        finally:
            with suppress(OSError):
                if is_locked:
                    path.unlink()
                    path.parent.rmdir()


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _lock_file(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except PermissionError:  # another user's: reading is enough to lock it, but over NFS
        return open_file(path)


def _remove_partial(folder: Path, name: str) -> None:
    """Removes what killed processes have left of decoding `name`. The caller holds its lock.

    So nobody on this host is decoding it. Another host may be, where a network file system keeps
    locks from it: what has no owner's mark of this host goes when it is a day old.
    """
    own = _partial_prefix(name)
    for partial in folder.glob("partial-*"):
        with suppress(OSError):
            state = partial.lstat()
            is_old = time.time() - state.st_mtime > ABANDONED_SECONDS
            if state.st_uid == os.getuid() and (partial.name.startswith(own) or is_old):
                shutil.rmtree(partial, ignore_errors=True)


def _partial_prefix(name: str) -> str:
    return f"partial-{name}-{socket.gethostname()}-"


def _fingerprint(sources: Sequence[Path]) -> str:
    """Names, sizes and times in the sources: cheap, and different when one of them changed.

    The time of a change too, which no program can set: a file may be replaced by another of the
    same size and date. 60,000 files take about 0.2 s.
    """
    digest = hashlib.sha256(str(CACHE_FORMAT).encode())
    for source, (folder, entries) in ((each, found) for each in sources for found in walk(each)):
        states = [(name, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                  for name, state in entries]
        digest.update(os.fsencode(f"{os.path.relpath(folder, source)} {states}"))
    return digest.hexdigest()[:16]


def _write_to_one(roots: Iterable[Path], dataset: ArrayDataset, data_dir: Path, source: Path,
                  name: str, state: str) -> Path:
    """Writes the cache to the first of `roots` that takes it, and removes those before it there.

    Raises DataError where none does, such as for want of space.
    """
    problems = []
    for root in roots:
        cache = root / f"{name}-{state}"
        try:
            _write_cache(dataset, cache, name, source if _is_beside(root, data_dir) else None)
        except OSError as error:  # numpy's has no reason where the disk is full
            problems.append(f"{root} ({error.strerror or 'not all of it can be written'})")
            continue
        for other in root.glob(f"{glob.escape(name)}-*"):
            if other != cache and len(other.name) == len(cache.name):
                shutil.rmtree(other, ignore_errors=True)
        return cache
    raise DataError(f"the decoded images, {dataset.inputs.nbytes / 1e6:,.0f} MB, cannot be written "
                    f"to {' or '.join(problems)}: free some space, or set XDG_CACHE_HOME to a "
                    "folder that has it")


def _write_cache(dataset: ArrayDataset, cache: Path, name: str, source: Path | None) -> None:
    """Writes beside the final place and renames, so that a cache is whole or absent.

    It is as readable as `source`; without one, for this user alone. Raises OSError.
    """
    partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(name), dir=cache.parent))
    try:
        np.save(partial / IMAGES, dataset.inputs)
        np.save(partial / LABELS, dataset.targets)
        meta = {"class_names": dataset.class_names, "digest": dataset.digest, "note": dataset.note,
                "images": state_of(partial / IMAGES),
                "labels": digest_of_arrays([dataset.targets], dataset.class_names)}
        (partial / META).write_text(json.dumps(meta))
        if source is not None:
            open_to_readers_of(source, [partial, *partial.iterdir()])
        partial.rename(cache)
    except OSError:
        if not os.path.lexists(cache):  # else another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _open_cache(cache: Path) -> ArrayDataset:
    """Raises DataError, naming the cache, where it is not what was written."""
    try:
        meta = read_json(cache / META)
        with open_file(cache / LABELS) as file:
            labels, names = np.load(file), tuple(meta["class_names"])
        if digest_of_arrays([labels], names) != meta["labels"]:
            raise ValueError(f"{LABELS} was altered")
        images = RowsOnDisk(cache / IMAGES, meta["images"], lambda rows: (
            digest_of_arrays([rows, labels], names) == meta["digest"]))
        return ArrayDataset(images, labels, names, meta["digest"], meta["note"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError,
            MemoryError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise DataError(f"the cache {cache} cannot be read ({why}); delete it, or "
                        "have its owner delete it, and it is made anew") from error
