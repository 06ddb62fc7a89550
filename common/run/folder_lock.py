"""The lock on a run's folder: of two runs that are started in it, one gets it.

    outputs/PartOne/.lock_rank0      holds "PID HOST" of the run that is open, or of the last one
"""

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from common.core.failures import UsageError

# Whoever held it may be ending: torchrun starts workers anew as soon as it has killed the old ones.
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1


class FolderLock:
    """One rank's lock on `folder`, a context manager; `take` takes it.

    It ends with the process, however that ends: nothing stale stays behind. Forked workers do not
    have it, as they would with flock: they outlive a killed rank by a moment.
    """

    def __init__(self, folder: Path, rank: int, whose: str) -> None:
        self._folder, self._path, self._whose = folder, folder / f".lock_rank{rank}", whose
        self._file = -1

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def take(self) -> str:
        """Takes the lock, anew if the folder was deleted; returns a warning if locks do not work.

        Raises UsageError where another run has it, and where the folder cannot be written.
        """
        self.__exit__()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UsageError(f"{self._whose}the output folder {error.filename} cannot be written: "
                             f"{error.strerror}") from error
        return self._lock()

    def _lock(self) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._note_holder()
                return ""
            except (BlockingIOError, PermissionError) as error:  # another process has it
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"{self._whose}another run{self._holder()} is training in {self._folder}: "
                        "wait for its end, stop it, or choose another --output-dir") from error
                time.sleep(POLL_SECONDS)
            except OSError as error:
                return (f"warning: {self._whose}the file system of {self._folder} has no locks "
                        f"({error.strerror}), so nothing keeps a second run out of it")

    def _note_holder(self) -> None:
        with suppress(OSError):  # a full disk
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()} {os.uname().nodename}".encode(), 0)

    def _holder(self) -> str:
        """Its process, as far as the lock's file tells."""
        text = os.pread(self._file, 300, 0).decode(errors="replace")
        match = re.fullmatch(r"([0-9]+) ([A-Za-z0-9.-]+)", text)
        return f" (process {match[1]} on {match[2]})" if match else ""
