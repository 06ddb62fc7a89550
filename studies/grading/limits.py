"""Limits on a process that runs code of others.

Time, memory, and the size of files are limited here, the number of processes by keeper.py, and what
it may write and signal as far as the kernel allows (isolation.py). The code may still read whatever
this user may: use a container or another user for code that you do not trust.
"""

import os
import resource
import tempfile

from studies.grading.isolation import give_up_rights

MEMORY_BYTES, SHARED_BYTES = 2 << 30, 3 << 30
FILE_BYTES = 100 << 20
MOST_FILES = 512
CPU_SECONDS = 60


def limit_this_process(writable: str) -> None:
    """Limits this process for good; only `writable` can be written to, if the kernel can do so."""
    os.setsid()
    os.environ["TMPDIR"] = tempfile.tempdir = writable
    give_up_rights(writable)
    _at_most(resource.RLIMIT_CPU, CPU_SECONDS)
    _at_most(resource.RLIMIT_DATA, _bytes_of("VmData") + MEMORY_BYTES)
    _at_most(resource.RLIMIT_AS, _bytes_of("VmSize") + SHARED_BYTES)
    _at_most(resource.RLIMIT_NOFILE, MOST_FILES)
    _at_most(resource.RLIMIT_FSIZE, FILE_BYTES)
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(which: int, limit: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def _bytes_of(what: str) -> int:
    """Memory of this process in bytes: importing torch alone takes much of it."""
    with open("/proc/self/status") as status:
        entry = next(line for line in status if line.startswith(f"{what}:"))
    return int(entry.split()[1]) * 1024
