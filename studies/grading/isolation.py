"""Kernel limits that a process of any user can put on itself: it cannot see others, or their files.

Namespaces hide all processes, networks and connections of the machine, and make its files
read-only; Landlock forbids writing, signals and looking into processes outside of its domain. Both
may be switched off on a machine, so both are tried.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from studies.proof.ranks import CONTEXT

_libc = ctypes.CDLL(None, use_errno=True)

_NEW = {"mounts": 0x20000, "ipc": 0x8000000, "users": 0x10000000, "pids": 0x20000000,
        "network": 0x40000000}
_MS_REC_PRIVATE, _TMPFS_LIMITS = 0x44000, b"size=64m,nr_inodes=4096"
_MOUNT_SETATTR, _HERE, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_CAPSET_VERSION, _READ_ANY_FILE = 0x20080522, 1 << 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

# linux/landlock.h; the numbers of its calls are the same on every architecture
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_ALL_WRITES = (0x1FF2, 0x3FF2, 0x7FF2)  # of versions 1, 2, and 3 and later
_NO_ABSTRACT_SOCKETS_NOR_SIGNALS = 3

# linux/seccomp.h and linux/audit.h: by machine, its number and that of its call `socket`
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_IO_URING_SETUP, _OTHER_CALLS, _SET_SECCOMP, _FILTER = 425, 0x40000000, 22, 2


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def is_possible() -> bool:
    """True if this user may make namespaces here: tried in a process that ends at once."""
    trial = CONTEXT.Process(target=_try)
    trial.start()
    trial.join()
    return trial.exitcode == 0


def _try() -> None:
    try:
        leave_the_machine()
    except OSError:
        os._exit(1)
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            make_files_read_only([], "/dev")
            os._exit(0)
        os._exit(1)
    os._exit(os.waitpid(child, 0)[1] >> 8)


def leave_the_machine() -> None:
    """Enters new namespaces; the next process that is forked is the first of its own machine.

    Raises OSError where this is not allowed. There must be no other thread.
    """
    user, group, is_root = os.geteuid(), os.getegid(), os.geteuid() == 0
    wanted = {name: flag for name, flag in _NEW.items() if name != "users" or not is_root}
    _checked(_libc.unshare(sum(wanted.values())))
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def make_files_read_only(hidden: Sequence[str], writable: str) -> None:
    """Makes all files read-only but those below `writable`, which is empty and small.

    `hidden` folders are empty.
    """
    _checked(_libc.mount(None, b"/", None, _MS_REC_PRIVATE, None))
    attributes = struct.pack("4Q", _READ_ONLY, 0, 0, 0)
    for folder in hidden:
        _empty(folder)
    _checked(_libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, attributes, len(attributes)))
    _empty(writable)


def _empty(folder: str) -> None:
    _checked(_libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, _TMPFS_LIMITS))


def end_with_parent(signal: int) -> None:
    _libc.prctl(_SET_DEATH_SIGNAL, signal, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of those below it whose parent has ended."""
    _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def give_up_rights(writable: str) -> None:
    """Limits this process for good to writes below `writable` and signals to its descendants."""
    _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # a kernel without Landlock
        _restrict(writable)
    if platform.machine() in _MACHINES:
        _refuse_unix_sockets(*_MACHINES[platform.machine()])
    header = struct.pack("Ii", _CAPSET_VERSION, 0)
    kept = _READ_ANY_FILE if os.geteuid() == 0 else 0
    _checked(_libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def _refuse_unix_sockets(machine: int, socket_call: int) -> None:
    """Makes `socket` refuse Unix sockets: other programs may obey whoever connects to theirs."""
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    steps = ((load, 0, 0, 4), (equal, 0, 7, machine), (load, 0, 0, 0),
             (at_least, 5, 0, _OTHER_CALLS), (equal, 4, 0, _IO_URING_SETUP),
             (equal, 0, 2, socket_call), (load, 0, 0, 16), (equal, 1, 0, socket.AF_UNIX),
             (end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x50000 | errno.EPERM))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HP", len(steps), ctypes.addressof(program))
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0))


def _restrict(writable: str) -> None:
    version = _checked(_libc.syscall(_CREATE, None, 0, 1))
    writes = _ALL_WRITES[min(version, len(_ALL_WRITES)) - 1]
    scoped = _NO_ABSTRACT_SOCKETS_NOR_SIGNALS if version >= 6 else 0
    attributes = struct.pack("3Q", writes, 0, scoped)
    rules = _checked(_libc.syscall(_CREATE, attributes, len(attributes) if scoped else 8, 0))
    for path, allowed in ((writable, writes), ("/dev/null", (_WRITE_FILE | _TRUNCATE) & writes)):
        place = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", allowed, place)
        _checked(_libc.syscall(_ADD, rules, 1, rule, 0))
        os.close(place)
    _checked(_libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)
