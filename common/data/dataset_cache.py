"""Decoded images on disk, mapped into memory by all ranks of a node.

One folder per source and state of the source, holding images.npy, labels.npy and meta.json. It is
built once, under a lock, and appears whole or not at all.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from common.core.failures import DataError, first_line
from common.data.dataset import ArrayDataset, make_dataset

CACHE_FORMAT = 1
Arrays = tuple[np.ndarray, np.ndarray, list[str]]


def cached(data_dir: Path, name: str, source: Path, read: Callable[[], Arrays]) -> ArrayDataset:
    """The data set from its cache; decoded and cached first when `source` is new or has changed."""
    state = _fingerprint(source)
    for folder in _cache_roots(data_dir):
        if (folder / f"{name}-{state}").is_dir():
            return _open_cache(folder / f"{name}-{state}")
    folder = _writable_root(data_dir)
    with _locked(folder / f"{name}.lock"):
        cache = folder / f"{name}-{_fingerprint(source)}"  # another rank may have been first
        if not cache.is_dir():
            dataset, state = _read_unchanged(source, read)
            cache = folder / f"{name}-{state}"
            _write_cache(dataset, cache)
            for other in folder.glob(f"{name}-*"):
                if other != cache and len(other.name) == len(cache.name):
                    shutil.rmtree(other, ignore_errors=True)
    return _open_cache(cache)


def _read_unchanged(source: Path, read: Callable[[], Arrays]) -> tuple[ArrayDataset, str]:
    """The data set and its source's fingerprint, read again if the source changed meanwhile.

    So a folder that is still being unpacked makes no cache that looks complete.
    """
    while True:
        before = _fingerprint(source)
        dataset = make_dataset(*read())
        if _fingerprint(source) == before:
            return dataset, before


def _cache_roots(data_dir: Path) -> Iterator[Path]:
    """Where a cache may be: beside the data, else in the user's cache folder, else a temporary."""
    yield data_dir / ".cache"
    path_key = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:8]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in (home, tempfile.gettempdir()):
        yield Path(base) / "data-parallel-training" / path_key


def _writable_root(data_dir: Path) -> Path:
    for folder in _cache_roots(data_dir):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise DataError(f"neither {data_dir} nor the user's cache folder nor {tempfile.gettempdir()} "
                    "can be written, so there is no place for the decoded images")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`: of all ranks of a node, one decodes and the rest wait.

    On a file system without locks they all decode, and the first to finish wins.
    """
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint(source: Path) -> str:
    """Names, sizes and times of the source's files: cheap, and different when the source changed.

    Hidden folders do not count: one is the cache. 60,000 files take about 0.2 s.
    """
    digest = hashlib.sha256(str(CACHE_FORMAT).encode())
    for folder, subfolders, _ in os.walk(source):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        with os.scandir(folder) as entries:
            states = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
                            for entry in entries if entry.is_file())
        digest.update(f"{os.path.relpath(folder, source)} {states}".encode())
    return digest.hexdigest()[:16]


def _write_cache(dataset: ArrayDataset, cache: Path) -> None:
    """Writes beside the final place and renames, so that a cache is whole or absent."""
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache.parent))
    try:
        np.save(partial / "images.npy", dataset.inputs)
        np.save(partial / "labels.npy", dataset.targets)
        meta = {"class_names": dataset.class_names, "digest": dataset.digest}
        (partial / "meta.json").write_text(json.dumps(meta))
        partial.rename(cache)
    except OSError as error:
        if cache.is_dir():
            return  # another process was faster
        raise DataError(f"the decoded images cannot be written to {cache.parent}: "
                        f"{error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _open_cache(cache: Path) -> ArrayDataset:
    try:
        meta = json.loads((cache / "meta.json").read_text())
        # Copy-on-write: torch wants writable memory, and no write may reach the file.
        images = np.load(cache / "images.npy", mmap_mode="c")
        labels = np.load(cache / "labels.npy")
    except (OSError, ValueError) as error:
        raise DataError(f"the cache {cache} cannot be read ({first_line(error)}); delete it and "
                        "it is made anew") from error
    return ArrayDataset(images, labels, tuple(meta["class_names"]), meta["digest"])
