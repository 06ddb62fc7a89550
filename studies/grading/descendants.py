"""The processes that a process has started, by any way: counted, and ended."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

END_SECONDS = 10.0


def own_number() -> int:
    """This process's number in /proc: the machine's, also in a namespace."""
    return int(os.readlink("/proc/self"))


def descendants(process: int) -> Iterator[int]:
    """All processes below one, including those that have ended and were not waited for.

    Each comes before its children are looked for. There may be no end of them: a caller stops them
    as they come, or stops to ask.
    """
    left = _children(process)
    while left:
        yield (last := left.pop())
        left += _children(last)


def _children(process: int) -> list[int]:
    children = list[int]()
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as listed:
                children += map(int, listed.read().split())
    return children


def end_descendants() -> None:
    """Ends all processes below this one, which must adopt orphans, or be first in its namespace."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        if os.getpid() == 1:  # the kernel finds them all, and lets none be added meanwhile
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            _end_one_by_one()
        if not _reap():
            return
        time.sleep(0.005)


def _end_one_by_one() -> None:
    """Stops them first, as long as there are new ones: a stopped process starts nothing."""
    stopped, before = set[int](), -1
    while len(stopped) > before:
        before = len(stopped)
        for process in descendants(os.getpid()):
            _signal(process, signal.SIGSTOP)
            stopped.add(process)
    for process in stopped:
        _signal(process, signal.SIGKILL)


def _signal(process: int, which: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, which)


def _reap() -> bool:
    """Forgets children that have ended; True if others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
