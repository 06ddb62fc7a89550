"""Checks that the run's store answers at the master's port, before torch connects to it.

torch's client waits for ever, whatever its timeout, for a program that accepts a connection and
sends nothing; for any other reply it prints pages of C++ frames. So a plain socket sends the
greeting of torch's client first, and looks at the reply.
"""

import functools
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from typing import TypeVar

from torch.distributed import TCPStore

from common.cluster import addresses
from common.cluster.board import REMARK_SECONDS
from common.core.failures import PeerLost, UsageError, first_line
from common.core.world import World

RETRY_SECONDS = 0.2
REPLY_SECONDS = 2.0
STORE_TIMEOUT = timedelta(seconds=60)  # the watch is sooner to say that a leader is silent
NONCE = b"ping"
# TCPStore's queries VALIDATE, with its magic number, and PING, to which it replies the nonce.
GREETING = struct.pack("<BIB", 0, 0x3C85F7CE, 13) + NONCE
NO_ANSWER = "no answer"
Result = TypeVar("Result")


def serve_store(address: str, port: int) -> TCPStore:
    """A store served on this one address. Raises UsageError where the port cannot be had."""
    listener = addresses.listen(address, port)
    return TCPStore(address, listener.getsockname()[1], is_master=True, timeout=STORE_TIMEOUT,
                    wait_for_workers=False, master_listen_fd=listener.detach())


def wait_for_master(world: World, address: str, deadline: float,
                    say: Callable[[str], None]) -> None:
    """Returns once a store answers at the master's port; prints every few seconds that it waits.

    Raises UsageError when another program answers there, PeerLost when no store does by the
    deadline.
    """
    place = addresses.place(address, world.master_port)
    reason, remark = NO_ANSWER, time.monotonic() + REMARK_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            seconds = min(REPLY_SECONDS, left / 2)
            reply = reply_of(address, world.master_port, seconds)
            if reply == NONCE or not _greeting_is_known():
                return
            if reply is not None or seconds == REPLY_SECONDS or reason == NO_ANSWER:
                reason = _what_is_wrong(reply, place)  # the last moments may be too short to tell
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > remark:
            say(f"waiting for rank 0 at {place} ({reason})")
            remark += REMARK_SECONDS
        time.sleep(RETRY_SECONDS)
    raise PeerLost(f"rank {world.rank} on {socket.gethostname()} cannot reach rank 0 at "
                   f"{place} ({reason}): is rank 0 running there, and is the port open and free "
                   "of other programs?")


def reply_of(address: str, port: int, seconds: float) -> bytes | None:
    """The first bytes after the greeting; b"" for a closed connection, None for no reply in time.

    Raises OSError when nothing accepts the connection.
    """
    with socket.create_connection((address, port), timeout=seconds) as connection:
        try:
            connection.sendall(GREETING)
            return connection.recv(64)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _what_is_wrong(reply: bytes | None, place: str) -> str:
    """No reply, or a closed connection, may pass: a paused rank 0, a proxy with no server yet."""
    if reply is None:
        return "the connection is accepted, but no store answers"
    if not reply:
        return "the connection is closed at once"
    words = reply.decode("ascii", "backslashreplace").split("\n")[0].strip()
    raise UsageError(f"another program holds {place}, where rank 0 should answer, and says "
                     f"{words!r}: choose another --master-port on every node")


@functools.cache
def _greeting_is_known() -> bool:
    """Returns True if this torch's store replies as expected; else a reply proves nothing."""
    store = serve_store("127.0.0.1", 0)
    return reply_of("127.0.0.1", store.port, REPLY_SECONDS) == NONCE


def before(deadline: float, action: Callable[[], Result], place: str) -> Result:
    """The action's result. Raises PeerLost when the store fails, or does not answer in time.

    The thread of an action that never ends is left behind; it does not keep the process alive.
    """
    future: futures.Future[Result] = futures.Future()

    def act() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=act, name="store", daemon=True).start()
    try:
        return future.result(max(0.0, deadline - time.monotonic()))
    except futures.TimeoutError:
        how = "no longer"
    except RuntimeError as error:
        how = f"failed: {first_line(error)}"
    raise PeerLost(f"the store at {place} answered, and then {how}: has rank 0 ended there?")
