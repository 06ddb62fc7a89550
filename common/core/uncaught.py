"""A failure that leaves this project for somebody's script: its sentence, without our traceback.

    python3 examples/own_script.py PartTwo    # error: task_flag='PartTwo' needs a process group
"""

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any

from common.core.failures import Failure, UsageError
from common.core.progress import process_progress

OURS = Path(__file__).resolve().parents[1]


@contextmanager
def told_alone() -> Iterator[None]:
    """Around what a script calls: a Failure leaves it without the exceptions that led to it.

    Where the script does not catch it either, it ends the script with its sentence alone, and its
    exit code; a UsageError also shows the script's own lines, which are what to change.
    """
    try:
        yield
    except Failure as failure:
        if getattr(sys.excepthook, "func", None) is not _tell:
            sys.excepthook = partial(_tell, sys.excepthook)
        raise failure from None


def _tell(show: Callable[..., Any], kind: type[BaseException], error: BaseException,
          trace: TracebackType | None) -> None:
    """Hook for sys.excepthook: prints a Failure in a sentence; `show` prints all other errors."""
    if not isinstance(error, Failure):
        show(kind, error, trace)
        return
    if isinstance(error, UsageError):
        calls = takewhile(_is_the_scripts, traceback.extract_tb(trace))
        print("".join(traceback.format_list(list(calls))), end="", file=sys.stderr)
    print(f"{process_progress().mark}error: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


def _is_the_scripts(frame: traceback.FrameSummary) -> bool:
    return frame.filename != contextlib.__file__ and OURS not in Path(frame.filename).parents
