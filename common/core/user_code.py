"""Objects out of a user's own Python file; and errors in it, told by its own lines.

    python3 PartTwo/main.py ... --sync my_sync.py:MyAllReduce
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from common.core.failures import Failure, UsageError, first_line


class UserCodeError(UsageError):
    """The user's own code has raised; what it raised is the cause."""


class Place(NamedTuple):
    """Something in a user's file, written FILE.py:NAME."""

    file: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """The place that `text` means; None where it has another form."""
        file, colon, name = text.rpartition(":")
        return cls(Path(file).expanduser(), name) if colon and file.endswith(".py") else None

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def digest(self) -> str:
        """Of the file's text. Raises UsageError where it cannot be read."""
        try:
            return hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise UsageError(f"{self.file} cannot be read: {error.strerror}") from error

    def load(self) -> Any:
        """The object. Raises UsageError where there is none, UserCodeError where its file fails."""
        module = _module(self.file.absolute(), self.digest)
        if not hasattr(module, self.name):
            own = [name for name, value in vars(module).items()
                   if getattr(value, "__module__", None) == module.__name__]
            raise UsageError(f"{self.file} has no {self.name!r}" + (
                f"; it has {', '.join(own)}" if own else ""))
        return getattr(module, self.name)


@cache
def _module(file: Path, digest: str) -> ModuleType:
    name = f"user_code_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(1, str(file.parent))  # for what stands beside it
    with own_errors(file):
        spec.loader.exec_module(module)
    return module


@contextmanager
def own_errors(file: Path) -> Iterator[None]:
    """Around calls of what is in `file`: what it raises becomes a UserCodeError.

    Prints the traceback, cut to the lines of the file and of those beside it.
    """
    try:
        yield
    except Failure:
        raise
    except (Exception, SystemExit) as error:
        told = traceback.TracebackException.from_exception(error)
        own = [frame for frame in told.stack
               if Path(frame.filename).parent == file.absolute().parent]
        told.stack = traceback.StackSummary.from_list(own)
        told.__cause__ = told.__context__ = None
        print("".join(told.format()), file=sys.stderr, end="", flush=True)
        where = _where(error, own, file)
        raise UserCodeError(f"{where}: {type(error).__name__}: {first_line(error)}") from error


def _where(error: BaseException, own: list[traceback.FrameSummary], file: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else file.name
