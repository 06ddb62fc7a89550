"""This process's connections: which machines no longer acknowledge what it sends; and their end.

The kernel's tables tell the former. A lost link between two ranks shows nowhere else: both go on to
reach the leader, and both wait. A process that is stopped, or computes, is not meant: its machine
acknowledges for it.

    python3 -c "from common.cluster.connections import *; print(unacknowledged())"
"""

import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.cluster.rank_info import RankInfo
from common.core.failures import PeerLost
from common.core.progress import CONNECTING, Progress

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LEAST_REPEATS = 4  # of one segment, in 3 seconds or more: the intervals double from 0.2 seconds
_ESTABLISHED, _REPEATING = "01", "01:"
# Before the leader, which sees only that nobody moves, calls one of the ranks stuck.
PART_OF_PATIENCE = 0.75


class OwnLinks:
    """Looks at this rank's connections once it has stayed in one place for most of `patience`."""

    def __init__(self, patience: float, progress: Progress) -> None:
        self._patience = PART_OF_PATIENCE * patience
        self.ranks: Sequence[RankInfo] = ()  # once they are known
        self._progress = progress
        self._place: tuple[int, ...] = ()
        self._moved = time.monotonic()

    def lost_link(self, rank: int) -> PeerLost | None:
        """Names the pair of ranks between which nothing passes; call it at every beat."""
        place, now = self._progress.order(), time.monotonic()
        if place != self._place:
            self._place, self._moved = place, now
        # Before there is a group only the leader is talked to. A look costs as much as the machine
        # has connections: a thousand ranks that look while they join stop it.
        is_in_group = self._progress.epoch > 0 or self._progress.phase == CONNECTING
        if not is_in_group or now - self._moved < self._patience:
            return None
        if not (addresses := unacknowledged()):
            return None
        others = [str(each) for each in self.ranks
                  if each.rank != rank and each.address.partition("%")[0] in addresses]
        if not others:
            return None
        return PeerLost(
            f"{' or '.join(others)} no longer acknowledges what {self.ranks[rank]} sends "
            f"{self._progress.place()}, for {now - self._moved:.0f} s: the link between "
            f"{self.ranks[rank].address} and {', '.join(sorted(addresses))} is lost, or a firewall "
            "drops what goes there")


def unacknowledged() -> set[str]:
    """The addresses to which a connection of this process repeats a segment in vain."""
    return {remote_address(row) for row in _own_rows() if is_repeating(row)}


def is_repeating(row: Sequence[str]) -> bool:
    """Returns True for the words of a connection that repeats, as in /proc/net/tcp."""
    return (row[3] == _ESTABLISHED and row[5].startswith(_REPEATING)
            and int(row[6], 16) >= LEAST_REPEATS)


def holds_bytes(but_port: int) -> bool:
    """Returns True if a connection of this process has unacknowledged or unread bytes; or unknown.

    Connections from or to `but_port`, the store's, do not count.
    """
    but = f":{but_port:04X}"
    queues = [row[4] for row in _own_rows()
              if row[3] == _ESTABLISHED and not (row[1].endswith(but) or row[2].endswith(but))]
    return not queues or any(queue.strip("0:") for queue in queues)


def end_connections(but_port: int) -> None:
    """Shuts this process's TCP connections down, which wakes its threads that wait for a message.

    Those from or to `but_port` stay.
    """
    for each in _sockets():
        with each, contextlib.suppress(OSError):  # it is closed, or listens
            if but_port not in (each.getsockname()[1], each.getpeername()[1]):
                each.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """The TCP sockets that are open in this process, as duplicates; close each."""
    for descriptor, _ in _own_sockets():
        with contextlib.suppress(OSError):  # it is closed by now
            each = socket.socket(fileno=os.dup(descriptor))
            if each.family in (socket.AF_INET, socket.AF_INET6) and (
                    each.type == socket.SOCK_STREAM):
                yield each
            else:
                each.close()


def _own_rows() -> Iterator[list[str]]:
    """The words of the kernel's rows on this process's connections."""
    mine = {inode for _, inode in _own_sockets()}
    for path in filter(Path.exists, TABLES):
        rows = map(str.split, path.read_text().splitlines()[1:])
        yield from (row for row in rows if row[9] in mine)


def _own_sockets() -> Iterator[tuple[int, str]]:
    """The sockets that this process has open: descriptor and inode."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith("socket:["):
                yield int(descriptor), target[len("socket:["):-1]


def remote_address(row: Sequence[str]) -> str:
    """From the kernel's hexadecimal digits, whose 32-bit words are in the processor's order."""
    digits = row[2].split(":")[0]
    words = (digits[start:start + 8] for start in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
