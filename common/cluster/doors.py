"""Carries out the requests of membership.py: each process's door is a TCPStore that it serves."""

import json
import socket
import time
from typing import Any, TypeVar

from torch.distributed import TCPStore

from common.cluster.addresses import place
from common.cluster.master_port import STORE_TIMEOUT, before, reply_of, serve_store
from common.cluster.membership import Add, Get, Put, Sleep, Steps, Unreachable
from common.cluster.posts import ABSENT
from common.core.failures import PeerLost, UsageError

ANSWER_SECONDS = 1.0
CONNECT_SECONDS = 0.2
Result = TypeVar("Result")


class Doors:
    """This process's own door, `mine`, and connections to others'.

    It is at `port` of `address`, or, unless it `must` be there, at any port where that is taken.
    """

    def __init__(self, address: str, port: int, must: bool) -> None:
        try:
            self.store = serve_store(address, port)
        except UsageError:
            if must:
                raise
            self.store = serve_store(address, 0)
        self.mine = place(address, self.store.port)
        self._open: dict[str, TCPStore] = {}
        self._lines: dict[str, socket.socket] = {}

    def hang_up(self) -> None:
        """Call before the connections to other doors are shut down: they are made anew then."""
        self._open.clear()
        while self._lines:
            self._lines.popitem()[1].close()

    def has_ended(self, door: str) -> bool:
        """Returns True if the process of a door has ended; without waiting for one that is stopped.

        By a connection that is kept and says nothing: its end is the process's.
        """
        try:
            if door not in self._lines:
                self._lines[door] = socket.create_connection(address_of(door), CONNECT_SECONDS)
            return not self._lines[door].recv(1, socket.MSG_DONTWAIT)
        except (ConnectionRefusedError, ConnectionResetError):
            return True
        except OSError:  # it says nothing, or does not answer
            return False

    def carry_out(self, steps: Steps[Result]) -> Result:
        """The result of `steps`; raises what they raise."""
        answer: Any = None
        while True:
            try:
                request = (steps.throw(answer) if isinstance(answer, Unreachable)
                           else steps.send(answer))
            except StopIteration as end:
                return end.value
            try:
                answer = self._carry_out(request)
            except Unreachable as error:
                answer = error

    def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            time.sleep(request.seconds)
            return None
        try:
            return before(time.monotonic() + ANSWER_SECONDS,
                          lambda: _act(self._connected(request.door), request), request.door)
        except ConnectionRefusedError as error:
            raise Unreachable(is_gone=True) from error
        except (PeerLost, OSError) as error:
            self._open.pop(request.door, None)
            raise Unreachable(is_gone=False) from error

    def _connected(self, door: str) -> TCPStore:
        """A connection to a door; torch's own attempt would wait for one where nobody is."""
        if door == self.mine:
            return self.store
        if door not in self._open:
            address, port = address_of(door)
            reply_of(address, port, ANSWER_SECONDS)
            self._open[door] = TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)
        return self._open[door]


def address_of(door: str) -> tuple[str, int]:
    """The address and the port that `place` put together."""
    address, _, port = door.rpartition(":")
    return address.strip("[]"), int(port)


def _act(store: TCPStore, request: Put | Get | Add) -> Any:
    key = f"door/{request.key}"
    if isinstance(request, Put):
        return store.set(key, json.dumps(request.value))
    if isinstance(request, Add):
        return store.add(key, request.more)
    value = store.compare_set(key, ABSENT, ABSENT).decode()
    return None if value == ABSENT else json.loads(value)
