"""Types for argparse: a text to a value that can be meant, or a complaint that says what can."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.core.settings import LOCAL_SYNC_NAMES, SYNC_NAMES


def _number(kind: Callable[[str], Any], accept: Callable[[Any], bool],
            meaning: str) -> Callable[[str], Any]:
    """A type for argparse: a number of `kind` that is accepted, or an error that says `meaning`."""
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (value == value and abs(value) < LARGEST and accept(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
        return value
    return parse


LARGEST = 2**62
integer = _number(int, lambda n: True, "a whole number")
count = _number(int, lambda n: n >= 1, "a whole number of at least 1")
whole = _number(int, lambda n: n >= 0, "a whole number of at least 0")
positive = _number(float, lambda x: x > 0, "a number above 0")
not_negative = _number(float, lambda x: x >= 0, "a number of at least 0")
fraction = _number(float, lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1")


def epoch_and_iterations(text: str) -> tuple[int, int]:
    """A type for --profile: EPOCH, or EPOCH:ITERATIONS with 5 by default."""
    epoch, colon, iterations = text.partition(":")
    return count(epoch), count(iterations) if colon else 5


def patience(text: str) -> tuple[int, float] | tuple[()]:
    """A type for --early-stopping: none, PATIENCE or PATIENCE:MIN_DELTA."""
    if text == "none":
        return ()
    epochs, _, min_delta = text.partition(":")
    return count(epochs), not_negative(min_delta or "0")


def convolutions(text: str) -> str:
    """A type for --convolutions: auto, library, or the path of a file from scripts/tune.py."""
    if text in ("auto", "library"):
        return text
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor library nor the .json file "
                                         "that scripts/tune.py wrote")
    return str(Path(text).expanduser())


def sync_list(text: str) -> tuple[str, ...]:
    """A type for --sync: names with commas between them, each once."""
    names = tuple(text.split(","))
    for name in names:
        if name not in CHOICES[sync_list]:
            raise argparse.ArgumentTypeError(f"no strategy is called {name!r}; there are "
                                             f"{', '.join(CHOICES[sync_list])}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a strategy twice")
    return names


# What the values of a type are made of, where argparse is not given choices.
CHOICES: dict[object, tuple[str, ...]] = {sync_list: SYNC_NAMES + LOCAL_SYNC_NAMES}
