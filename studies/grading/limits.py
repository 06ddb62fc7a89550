"""Limits on a process that runs code of others. This is no sandbox.

Time, memory and the size of files are limited, so that a mistake cannot stop the machine. The code
may still read and write whatever this user may, and reach the network: use a container or another
user for code that you do not trust.
"""

import os
import resource
import signal

MEMORY_BYTES = 2 << 30
FILE_BYTES = 100 << 20
LIFE_SECONDS = 60


def limit_this_process() -> None:
    """Makes it the leader of a process group, which its parent can end as a whole."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFE_SECONDS)  # should the grader be gone by then
    _at_most(resource.RLIMIT_CPU, LIFE_SECONDS)
    _at_most(resource.RLIMIT_DATA, _data_bytes() + MEMORY_BYTES)
    _at_most(resource.RLIMIT_FSIZE, FILE_BYTES)
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(which: int, limit: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def _data_bytes() -> int:
    """Private memory of this process by now: importing torch alone takes much of it."""
    with open("/proc/self/status") as status:
        found = next(line for line in status if line.startswith("VmData:"))
    return int(found.split()[1]) * 1024
