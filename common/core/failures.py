"""Exceptions for all that can go wrong, each with an exit code that a script can act on."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.core.visible import visible


class Failure(Exception):
    """An expected failure. Its text is the one sentence that the user reads, without traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """One line that moves no cursor, whatever names it quotes."""
        return visible(" ".join(super().__str__().split()))


class UsageError(Failure):
    """The command line, the environment or the output folder cannot be used as given."""

    exit_code = 2


class RanksDisagree(Failure):
    """The ranks were not started for the same run."""

    exit_code = 3


class DataError(Failure):
    """The data set is missing or broken."""

    exit_code = 4


class CheckpointError(Failure):
    """A checkpoint is missing, damaged, or belongs to something else."""

    exit_code = 4


class NonFiniteLoss(Failure):
    """The loss or a gradient is infinite or not a number."""

    exit_code = 5


class PeerLost(Failure):
    """Another rank died, hangs, cannot be reached or never came."""

    exit_code = 75


class Verdict(Failure):
    """A failure that some rank published: every rank reports the first one, and its exit code."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def first_line(error: BaseException) -> str:
    """The first line of the message of another library's exception, or its type's name."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def named(error: BaseException) -> str:
    """An exception's type and the first line of its message, if it has one."""
    return ": ".join(filter(None, [type(error).__name__, *str(error).splitlines()[:1]]))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the writing of `path`: raises UsageError, in a sentence, where that fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Context for work on values read from a file: raises DataError for any we do not write.

    Any other error inside is reported as that too, so the sentence ends with the place in the code.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
            MemoryError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(f"{what} holds values that this program does not write there "
                        f"({type(error).__name__}: {first_line(error)}; found at "
                        f"{Path(place.filename).name}:{place.lineno})") from error
