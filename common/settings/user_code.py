"""Objects out of a user's own Python file, and errors in it, shown with its own lines.

    python3 PartTwo/main.py ... --sync my_sync.py:MyAllReduce
"""

import hashlib
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from common.core.failures import Failure, UsageError, first_line, named
from common.core.files import read_bytes
from common.core.metrics import Metric
from common.core.progress import process_progress


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
        """SHA-256 of the file, its first 16 hex digits. Raises UsageError if it cannot be read."""
        try:
            return hashlib.sha256(read_bytes(self.file)).hexdigest()[:16]
        except OSError as error:
            raise UsageError(f"{self.file} cannot be read: {error.strerror}") from error

    def load(self) -> Any:
        """The object. Raises UsageError if it does not exist, UserCodeError if its file fails."""
        if not self.file.is_file():
            raise UsageError(f"there is no file {self.file}")
        module = _module(self.file.absolute())
        if not hasattr(module, self.name):
            own = [name for name, value in vars(module).items()
                   if getattr(value, "__module__", None) == module.__name__ or name.isupper()]
            raise UsageError(f"{self.file} has no {self.name!r}" + (
                f"; it has {', '.join(own)}" if own else ""))
        return getattr(module, self.name)


def label(text: str) -> str:
    """A name for folders and tables: of a place its file's and its own, of other texts itself."""
    place = Place.parse(text)
    return f"{place.file.stem}.{place.name}" if place else text


def require_distinct(texts: Sequence[str]) -> None:
    """Raises UsageError where two of `texts` have one label, which folders and tables would mix."""
    first: dict[str, str] = {}
    for text in texts:
        other = first.setdefault(label(text), text)
        if text == other and texts.count(text) > 1:
            raise UsageError(f"{text} is named twice")
        if text != other:
            raise UsageError(f"{other} and {text} would both be called {label(text)}: give one "
                             "file another name")


def digests(texts: Iterable[str]) -> dict[str, str]:
    """Digests of the user's files that `texts` name places in, by file name."""
    places = filter(None, map(Place.parse, texts))
    return {place.file.name: place.digest for place in places}


def loaded() -> dict[str, str]:
    """The digest of each user's file that has been loaded, by its name.

    What a user's file imports from beside it counts; packages in folders below do not.
    """
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = sorted({Path(name) for name in names if name and Path(name).parent in _folders})
    return {file.name: Place(file, "").digest for file in files}


@cache
def _module(file: Path) -> ModuleType:
    _require_source(file)
    name = f"user_code_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(1, str(file.parent))  # for what stands beside it
    _folders.add(file.parent)
    _make_exits_heard()
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise _told(error, file=file) from error
    return module


def _require_source(file: Path) -> None:
    """Raises UsageError where FILE.py is something else that people hand in under that name."""
    with file.open("rb") as source:
        head = source.read(200).lstrip()
    if head.startswith(b"PK\3\4"):
        raise UsageError(f"{file.name} is a zip file: unpack it")
    if head.startswith(b"{") and b'"cells"' in head:
        raise UsageError(f"{file.name} is a notebook: save it as a Python script")


@cache
def _make_exits_heard() -> None:
    """Turns os._exit, called by user code, into SystemExit, of which own_errors can tell.

    In this process's main thread alone: what user code has forked ends as it likes.
    """
    end_process, process = os._exit, os.getpid()

    def end_or_tell(status: int) -> NoReturn:
        caller = Path(sys._getframe(1).f_code.co_filename).parent
        if (caller in _folders and os.getpid() == process
                and threading.current_thread() is threading.main_thread()):
            raise SystemExit(status)
        end_process(status)

    os._exit = end_or_tell


IN_PLACE = ". Change no tensor in place that backward needs: write x = x + y, and not x += y"
_folders: set[Path] = set()  # those that user code has been loaded from


@contextmanager
def own_errors(unless: Callable[[BaseException], bool], who: str = "",
               workload: str = "") -> Iterator[None]:
    """Around what calls user code: what that raises becomes a UserCodeError about `who`.

    That includes sys.exit and os._exit, which would end one rank, or all, without a word. Prints
    the traceback, cut to the lines of the user's files. Where `workload` is a place in one, so does
    an error in a call of a torch module, as its shapes are the user's though none of the lines is.
    Errors for which `unless` holds, and all others, are raised unchanged.
    """
    try:
        yield
    except Failure:
        raise
    except BaseException as error:
        if unless(error):
            raise
        if own_frames(error):
            raise _told(error, who) from error
        call = failed_call(error) if Place.parse(workload) else ""
        if not call:
            raise
        raise UserCodeError(f"{who}{workload}: its model or its loss fails in {call}: "
                            f"{named(error).rstrip('.')}"
                            + IN_PLACE * ("inplace" in str(error))) from error


def failed_call(error: BaseException) -> str:
    """The innermost call of a torch module that the error has come through, and what it was given.

    Such as "Linear(in_features=3, out_features=2, bias=True), given (8, 4)"; or the metric, or the
    backward pass where torch itself fails in it; "" for none.
    """
    call, kind, code = "", getattr(sys.modules.get("torch.nn"), "Module", ()), None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        me, code = frame.f_locals.get("self"), frame.f_code
        if code.co_name == "_call_impl" and isinstance(me, kind):
            shapes = " and ".join(str(tuple(each.shape)) for each in frame.f_locals["args"]
                                  if hasattr(each, "shape"))
            is_leaf = not list(me.children())
            call = f"{me if is_leaf else type(me).__name__}, given {shapes or 'no tensor'}"
        elif isinstance(me, Metric):
            call = f"the metric {me.name!r}"
    if not call and code is not None and Path(code.co_filename).parent.name == "autograd":
        call = "the backward pass"
    return call


def defined_at(thing: Any) -> str:
    """Prefix for a sentence on a function or class of a user's file; "" for others."""
    code = getattr(thing, "__code__", None) or getattr(
        getattr(thing, "__init__", None), "__code__", None)
    if code is None or (file := Path(code.co_filename)).parent not in _folders:
        return ""
    return f"{file.name}, line {code.co_firstlineno}: "


def require_call(function: Any, role: str, *arguments: Any) -> None:
    """Raises UsageError where `function`, given as a workload's `role`, does not take these."""
    if reason := why_not_called(function, *arguments):
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(f"{defined_at(function)}{name}{inspect.signature(function)} is called as "
                         f"{role}: {reason}")


def why_not_called(function: Any, *arguments: Any) -> str:
    """The reason why `function` does not take these arguments; "" where it does."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # one of C, which tells nothing
        return ""
    except TypeError as error:
        return first_line(error)
    return ""


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of the user's files that the error has come through."""
    return [frame for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).parent in _folders]


def _told(error: BaseException, who: str = "", file: Path | None = None) -> UserCodeError:
    """Prints the user's part of the traceback; returns the sentence.

    `file` is for an error before its first line is reached. A Failure, which is a sentence of ours
    on the user's line, is told without a traceback.
    """
    report, own = traceback.TracebackException.from_exception(error), own_frames(error)
    report.stack = traceback.StackSummary.from_list(own)
    report.__cause__ = report.__context__ = None
    if not isinstance(error, Failure):
        print("".join(report.format()), file=sys.stderr, end="", flush=True)
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}, line {error.lineno}"
    else:
        where = (f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own
                 else file.name if file else "")
    if not isinstance(error, Exception) and file is None:
        where += f", ended the process {process_progress().place()}"
    sentence = first_line(error) if isinstance(error, Failure) else named(error)
    return UserCodeError(f"{who}{where}: {sentence}{_hidden(error)}")


def _hidden(error: BaseException) -> str:
    """A clause on a user's file that was imported in the place of a module of Python's, or ""."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file, module = Path(frame.f_code.co_filename), frame.f_globals.get("__name__")
        if file.parent in _folders and module in sys.stdlib_module_names:
            return f"; {file.name} hides Python's own module {module}: give it another name"
    return ""
