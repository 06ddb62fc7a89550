"""Where a rank waits: the user's line, and the call in it, out of its stack as it stands."""

import linecache
import os
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple

STACK_SECONDS = 1.0
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Waiting(NamedTuple):
    """A rank that does not go on. `line` is 0 where no line of the user's is being run."""

    rank: int
    line: int
    text: str
    call: str

    def __str__(self) -> str:
        if not self.line:
            return f"rank {self.rank} waits outside of the strategy"
        call = f" ({self.call})" if self.call and self.call not in self.text else ""
        return f"rank {self.rank} waits in line {self.line}, `{self.text}`{call}"


def waiting_in(pid: int | None, path: str, rank: int, file: Path) -> Waiting:
    """Asks the process for its stacks, which faulthandler writes to `path`."""
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + STACK_SECONDS
    while not (stacks := Path(path).read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.05)  # for the rest of it
    return innermost(Path(path).read_text() or stacks, rank, file)


def innermost(stacks: str, rank: int, file: Path) -> Waiting:
    """The user's line that is being run, of stacks whose most recent call comes first."""
    called = ""
    for found in map(_FRAME.match, stacks.splitlines()):
        if found is None:
            called = ""
            continue
        where, line, function = found.groups()
        if Path(where).parent == file.absolute().parent:
            text = linecache.getline(where, int(line)).strip()
            return Waiting(rank, int(line), text, called)
        if "/torch/distributed/" in where and function != "wrapper":
            called = function
    return Waiting(rank, 0, "", "")
