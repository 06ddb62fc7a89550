"""Frames of plain bytes between the grader and a rank: a JSON object, and numbers behind it.

Nothing that a rank sends is run, believed to be as long as it says, or waited for without limit.
"""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_HEAD = struct.Struct("<IQ")
MOST_HEADER = 1 << 16
_AT_ONCE = 1 << 20


class Malformed(Exception):
    """Raised for an answer that is not a frame, is too long, or is not the one asked for."""


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The grader's next frame, for a rank. Raises EOFError where the grader is gone."""
    header, body = _HEAD.unpack(_exactly(connection, _HEAD.size))
    return json.loads(_exactly(connection, header)), _exactly(connection, body)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), _AT_ONCE))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class Channel:
    """The grader's end of one rank's connection; no call of it waits."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._leaving, self._arrived = memoryview(b""), bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def put(self, data: bytes) -> None:
        """Queues a frame for `go_on` to send. Raises Malformed if something unasked has arrived."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._arrived += self._connection.recv(1)
        if self._arrived:
            raise Malformed("it has sent something that it was not asked for")
        self._leaving = memoryview(data)

    @property
    def events(self) -> int:
        """The events to poll for."""
        return select.POLLIN | (select.POLLOUT if self._leaving else 0)

    def go_on(self, most_body: int) -> tuple[dict[str, Any], bytes] | None:
        """Sends and receives a part; returns the frame when it is complete.

        What comes after it stays unread. Raises EOFError at the end of the stream, Malformed for
        anything but a frame whose body has `most_body` bytes at most.
        """
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if self._leaving:
                self._leaving = self._leaving[self._connection.send(self._leaving):]
        try:
            part = self._connection.recv(self._missing())
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        self._arrived += part
        return self._complete(most_body)

    def _missing(self) -> int:
        """The number of bytes to read at most, so that none of the next frame is."""
        if len(self._arrived) < _HEAD.size:
            return _HEAD.size - len(self._arrived)
        whole = _HEAD.size + sum(_HEAD.unpack_from(self._arrived))
        return min(_AT_ONCE, whole - len(self._arrived))

    def _complete(self, most_body: int) -> tuple[dict[str, Any], bytes] | None:
        if len(self._arrived) < _HEAD.size:
            return None
        header, body = _HEAD.unpack_from(self._arrived)
        if header > MOST_HEADER or body > most_body:
            raise Malformed(f"its answer begins like one of {header + body:,} bytes")
        whole = _HEAD.size + header + body
        if len(self._arrived) < whole:
            return None
        data, self._arrived = self._arrived, bytearray()
        text = bytes(data[_HEAD.size:_HEAD.size + header])
        return _parsed(text), bytes(data[_HEAD.size + header:whole])


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("its answer is no JSON") from error
    if not isinstance(header, dict):
        raise Malformed("its answer is no JSON object")
    return header


def wait(channels: Mapping[int, Channel], deadline: float) -> list[int]:
    """The ranks that have something to receive or room to send, until `deadline` at most."""
    poll, by_file = select.poll(), {each.fileno(): rank for rank, each in channels.items()}
    for each in channels.values():
        poll.register(each, each.events)
    milliseconds = max(0.0, deadline - time.monotonic()) * 1000
    return [by_file[file] for file, _ in poll.poll(milliseconds)]
