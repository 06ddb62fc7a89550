"""Standard output and standard error that may go away, and take no program with them.

A reader that has left (`| head`), a lost terminal or a full disk neither stops training nor shows
a traceback. Control characters are printed as escapes, so that no file's name can command a
terminal.

    python3 scripts/status.py outputs > /dev/full; echo $?     # one sentence, and 2
"""

import errno
import os
import re
import sys
from typing import Any, TextIO, cast

from common.core.failures import UsageError
from common.core.visible import visible

NOBODY_READS = (errno.EPIPE, errno.EIO)  # a pipe's reader has left; the terminal is gone
# How a progress bar, and the error that replaces it, begin and end: both go to standard error.
MOVES = re.compile(r"((?:[\r\n]|\x1b\[[AK])*)(.*?)(\r?)", re.DOTALL)


class Output:
    """A text stream that raises no OSError: what cannot be written is dropped.

    `lost` says why, unless nobody reads any more. Where it `may_be_lost` it draws a warning at
    once; elsewhere it is what the program is for, and `require_output` raises. Only a stream that
    `has_bars` moves a terminal's cursor.
    """

    def __init__(self, stream: TextIO, has_bars: bool = False) -> None:
        self._stream = stream
        self._has_bars = has_bars
        self.lost = ""
        self.may_be_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(self._shown(text))
        except UnicodeEncodeError:  # a terminal that is told to be ASCII alone
            self.write(self._shown(text).encode("ascii", "backslashreplace").decode())
        except OSError as error:
            self._lose(error)
        return len(text)

    def _shown(self, text: str) -> str:
        if text.isprintable() or not self._has_bars:
            return visible(text, "\n\t")
        match = MOVES.fullmatch(text)
        assert match is not None  # the middle matches anything
        return match[1] + visible(match[2], "\n\t") + match[3]

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if self.lost or error.errno in NOBODY_READS:
            return
        self.lost = error.strerror or str(error)
        if self.may_be_lost:
            print(f"warning: standard output cannot be written ({self.lost}): the run goes on "
                  "without it", file=sys.stderr)


def protect_output() -> None:
    """Replaces both streams; call once a process, first of all."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or _nowhere(descriptor)
        setattr(sys, name, cast(TextIO, Output(stream, name == "stderr")))


def _nowhere(descriptor: int) -> TextIO:
    """For a stream that was closed at the start, whose number the next file opened would get."""
    stream = open(os.devnull, "w")
    try:
        os.fstat(descriptor)
    except OSError:
        os.dup2(stream.fileno(), descriptor)
    return stream


def let_output_be_lost() -> None:
    """From now on the program does its work whether or not anybody can read what it prints."""
    if isinstance(sys.stdout, Output):
        sys.stdout.may_be_lost = True


def require_output() -> None:
    """Call at the end. Raises UsageError where output was lost that may not be."""
    sys.stdout.flush()
    if isinstance(sys.stdout, Output) and sys.stdout.lost and not sys.stdout.may_be_lost:
        raise UsageError(f"standard output cannot be written: {sys.stdout.lost}")
