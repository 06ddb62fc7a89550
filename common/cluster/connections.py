"""Machines that no longer acknowledge what this process sends, read from the kernel's tables.

A lost link between two ranks shows nowhere else: both go on to reach the leader, and both wait. A
process that is stopped, or computes, is not meant: its machine acknowledges for it.

    python3 -c "from common.cluster.connections import *; print(unacknowledged())"
"""

import contextlib
import ipaddress
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from common.cluster.rank_info import RankInfo
from common.core.failures import PeerLost
from common.core.progress import CONNECTING, Progress

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LEAST_REPEATS = 4  # of one segment, in 3 seconds or more: the intervals double from 0.2 seconds
_ESTABLISHED, _REPEATING = "01", "01"
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
    mine = set(_own_sockets())
    return {address for path in TABLES if path.exists()
            for address, socket in repeating(path.read_text().splitlines()[1:]) if socket in mine}


def repeating(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(remote address, inode) of the connections that repeat; `lines` as in /proc/net/tcp."""
    for line in lines:
        words = line.split()
        timer, _, _ = words[5].partition(":")
        if (words[3], timer) == (_ESTABLISHED, _REPEATING) and int(words[6], 16) >= LEAST_REPEATS:
            yield _address(words[2].split(":")[0]), words[9]


def holds_bytes(but_port: int) -> bool:
    """Returns True if a connection of this process has unacknowledged or unread bytes; or unknown.

    Connections from or to `but_port`, the store's, do not count.
    """
    mine = set(_own_sockets())
    queues = [queue for path in TABLES if path.exists()
              for queue, socket in _queues(path.read_text().splitlines()[1:], but_port)
              if socket in mine]
    return not queues or any(queue.strip("0:") for queue in queues)


def _queues(lines: Iterable[str], but_port: int) -> Iterator[tuple[str, str]]:
    """(bytes not acknowledged:bytes not read, inode) of the established connections."""
    for line in lines:
        words = line.split()
        ports = [int(place.split(":")[1], 16) for place in words[1:3]]
        if words[3] == _ESTABLISHED and but_port not in ports:
            yield words[4], words[9]


def _own_sockets() -> Iterator[str]:
    """The inodes of the sockets that this process has open."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith("socket:["):
                yield target[len("socket:["):-1]


def _address(digits: str) -> str:
    """From the kernel's hexadecimal digits, whose 32-bit words are in the processor's order."""
    words = (digits[start:start + 8] for start in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
