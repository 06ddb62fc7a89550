"""Connection, round trip and bandwidth from each rank to each other one, over plain sockets.

Every rank serves one ephemeral port on its own address, as gloo will, and probes the ports
of the other ranks by a schedule in which each rank takes part in one probe at a time.

    with LinkServer("127.0.0.1") as server:
        print(probe("127.0.0.1", server.port, seconds=0.2))
"""

import contextlib
import select
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass
from statistics import median

from common.cluster.addresses import family_of

PINGS = 20
CONNECT_SECONDS = 2.0
STALL_SECONDS = 2.0
POLL_SECONDS = 0.05
WARM_UP_SECONDS = 0.1  # a rate limiter lets its first burst through at full speed
BLOCK = 1 << 18
_PING, _STREAM = b"p", b"s"
_NUMBER = struct.Struct("!d")


@dataclass(frozen=True)
class Link:
    """The result of one rank's connection to another.

    `round_trip` is seconds, `bandwidth` bytes a second towards the other rank; None where `error`
    says why a value is missing.
    """

    round_trip: float | None = None
    bandwidth: float | None = None
    error: str = ""

    @property
    def connects(self) -> bool:
        return self.round_trip is not None


class LinkServer(socketserver.ThreadingTCPServer):
    """Answers probes on an ephemeral port of `address` from threads of its own, until the end.

    It answers a ping and counts the bytes of a stream; it keeps nothing.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str) -> None:
        self.address_family = family_of(address)
        super().__init__((address, 0), _answer)  # type: ignore[arg-type]
        self.port: int = self.server_address[1]

    def __enter__(self) -> "LinkServer":
        threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


def _answer(connection: socket.socket, *_: object) -> None:
    """Serves one caller until it closes the connection or stops sending."""
    with contextlib.suppress(OSError):
        _prepare(connection)
        while request := connection.recv(1):
            if request == _PING:
                connection.sendall(_NUMBER.pack(0))
                continue
            seconds = _receive_number(connection)
            _receive_for(WARM_UP_SECONDS, connection)
            start = time.perf_counter()
            received = _receive_for(seconds, connection)
            rate = received / (time.perf_counter() - start)
            connection.sendall(_NUMBER.pack(rate))
            _receive_for(STALL_SECONDS, connection)  # what is still in transit


def _receive_for(seconds: float, connection: socket.socket) -> int:
    """Counts the bytes that arrive in `seconds`; ends early when the connection is closed."""
    buffer, received, end = bytearray(BLOCK), 0, time.perf_counter() + seconds
    while time.perf_counter() < end and (count := connection.recv_into(buffer)):
        received += count
    return received


def probe(address: str, port: int, seconds: float) -> Link:
    """Connects to a LinkServer, pings it, and sends to it for about `seconds`.

    Never raises for a link that does not work: the Link then has an error.
    """
    try:
        connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        return Link(error=error.strerror or str(error))
    with connection:
        _prepare(connection)
        try:
            round_trip = median(_ping(connection) for _ in range(PINGS))
        except OSError as error:
            return Link(error=f"connected, then {error.strerror or error}")
        try:
            return Link(round_trip, _stream(connection, seconds))
        except OSError as error:
            return Link(round_trip, None,
                        f"small messages pass, large ones do not ({error.strerror or error})")


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(STALL_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ping(connection: socket.socket) -> float:
    """Seconds of a round trip."""
    start = time.perf_counter()
    connection.sendall(_PING)
    _receive_number(connection)
    return time.perf_counter() - start


def _stream(connection: socket.socket, seconds: float) -> float:
    """Sends until the other side answers with the rate at which it received, bytes a second."""
    connection.sendall(_STREAM + _NUMBER.pack(seconds))
    block = bytes(BLOCK)
    while not select.select([connection], [], [], 0)[0]:
        connection.send(block)
    rate = _receive_number(connection)
    # Reset at once: what is still in the send buffer would disturb the next measurement.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return rate


def _receive_number(connection: socket.socket) -> float:
    data = b""
    while len(data) < _NUMBER.size:
        more = connection.recv(_NUMBER.size - len(data))
        if not more:
            raise ConnectionError("the other side closed the connection")
        data += more
    return _NUMBER.unpack(data)[0]


def pairings(size: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs: each pair of `size` ranks comes once, no rank is in two pairs of a round.

    In round r are the pairs whose ranks add up to r, modulo `size`.
    """
    rounds = [[(rank, (total - rank) % size) for rank in range(size)
               if rank < (total - rank) % size] for total in range(size)]
    return [pairs for pairs in rounds if pairs]
