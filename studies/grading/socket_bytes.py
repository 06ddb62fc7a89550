"""The bytes that another process has sent and received, as the kernel counts them by connection.

The process is not asked: its sockets are looked at from outside, so it cannot say another number.
A connection that is opened and closed again between two looks is not seen, nor is what goes through
files or shared memory, or through a process that it has started.
"""

import contextlib
import ctypes
import os
import socket
import struct
from typing import NamedTuple

# struct tcp_info of linux/tcp.h: tcpi_bytes_received, tcpi_bytes_sent and tcpi_bytes_retrans
# (since Linux 4.19)
_RECEIVED, _SENT, _SIZE = 128, 200, 216
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


class Traffic(NamedTuple):
    """Payload bytes, without those that were sent again."""

    sent: int
    received: int

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(self.sent - before.sent, self.received - before.received)


class SocketBytes:
    """Looks at the open sockets of a process, and remembers those that have been closed since.

    `process` is a descriptor of it.
    """

    def __init__(self, process: int) -> None:
        self._folder = f"/proc/{process}/fd"
        self._by_socket: dict[str, Traffic] = {}
        self.process = os.pidfd_open(process)

    def close(self) -> None:
        os.close(self.process)

    def total(self) -> Traffic:
        """Bytes so far; connections that cannot be looked at do not count."""
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(self._folder):
                with contextlib.suppress(OSError):
                    name = os.readlink(f"{self._folder}/{descriptor}")
                    if name.startswith("socket:"):
                        self._by_socket[name] = self._of(int(descriptor))
        return Traffic(*map(sum, zip(*self._by_socket.values(), strict=True))
                       if self._by_socket else (0, 0))

    def _of(self, descriptor: int) -> Traffic:
        """The traffic of one descriptor. Raises OSError if it is not a TCP socket."""
        copy = _libc.syscall(_PIDFD_GETFD, self.process, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        with socket.socket(fileno=copy) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        info = info.ljust(_SIZE, b"\0")
        sent, again = struct.unpack_from("QQ", info, _SENT)
        return Traffic(sent - again, *struct.unpack_from("Q", info, _RECEIVED))
