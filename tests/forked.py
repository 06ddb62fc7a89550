"""Calls in processes of their own, forked here: hundreds of calls, each of which may hang or die.

    ended = forked(load, folder, output=tmp_path / "output.txt")
"""

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 60.0


class Ended(NamedTuple):
    """How a call ended: its exit code, None for one that hung; what it returned and printed."""

    code: int | None
    value: Any
    output: str


def forked(function: Callable[..., Any], *arguments: Any, output: Path,
           seconds: float = SECONDS) -> Ended:
    """Calls `function` in a child, whose streams go to the file `output`.

    An exception is printed with its traceback, and the exit code is 1.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _call(function, arguments, output, writer)
    os.close(writer)
    code = _wait(child, seconds)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    value = pickle.loads(data) if data else None
    return Ended(code, value, output.read_bytes().decode(errors="surrogateescape"))


def _call(function: Callable[..., Any], arguments: tuple, output: Path, writer: int) -> None:
    code = 1
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        value = function(*arguments)
        with os.fdopen(writer, "wb") as file:
            pickle.dump(value, file)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # whatever it is, it is shown, and the child ends here
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])
