"""Words of sentences: lists, and numbers of ranks.

    python3 -c "from common.reporting.words import *; print(join(['a', 'b', 'c']), ranks(3))"
"""

from collections.abc import Sequence

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def join(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def number(value: int) -> str:
    """A whole number, small ones in words."""
    return NUMBERS[value] if value < len(NUMBERS) else str(value)


def ranks(size: int) -> str:
    """A number of ranks in words."""
    return f"{number(size)} rank{'s' * (size > 1)}"
