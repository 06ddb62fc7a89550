"""Finds where a rank waits, from its stack: the user's line, and the call in it."""

import contextlib
import linecache
import re
import signal
import socket
from pathlib import Path
from select import select
from typing import NamedTuple

from common.core.visible import visible

STACK_SECONDS, REST_SECONDS = 1.0, 0.05
MOST_BYTES = 1 << 16
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Waiting(NamedTuple):
    """A rank that does not go on. `line` is 0 where none of the user's is known; `text` is it."""

    rank: int
    line: int
    text: str
    call: str

    def __str__(self) -> str:
        if not self.line:
            return f"rank {self.rank} {self.text}"
        call = f" ({self.call})" if self.call and self.call not in self.text else ""
        return f"rank {self.rank} waits in line {self.line}, `{self.text}`{call}"


def waiting_in(process: int, stacks: socket.socket, rank: int, file: Path) -> Waiting:
    """Asks the process, a descriptor of it, for its stacks, which faulthandler writes."""
    written = b""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGUSR1)
    while len(written) < MOST_BYTES and select([stacks], [], [], REST_SECONDS if written else
                                               STACK_SECONDS)[0]:
        part = stacks.recv(MOST_BYTES)
        if not part:
            break
        written += part
    return innermost(visible(written.decode(errors="replace"), "\n\t"), rank, file)


def innermost(stacks: str, rank: int, file: Path) -> Waiting:
    """The user's line that is being run, of stacks whose most recent call comes first."""
    called = ""
    for frame in map(_FRAME.match, stacks.splitlines()):
        if frame is None:
            called = ""
            continue
        where, line, function = frame.groups()
        if Path(where).parent == file.absolute().parent and Path(where).is_file():
            text = linecache.getline(where, int(line)).strip()
            return Waiting(rank, int(line), text, called)
        if "/torch/distributed/" in where and function != "wrapper":
            called = function
    return Waiting(rank, 0, "waits outside of the strategy" if stacks else
                   "does not answer, nor say where it is", "")
