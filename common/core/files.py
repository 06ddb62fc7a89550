"""Files that the user has named, to be written.

    with writing(path): path.write_text("...")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.core.failures import UsageError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the writing of `path`: raises UsageError, in a sentence, where that fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
