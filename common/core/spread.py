"""Means of measured seconds, their confidence intervals, and tests for a difference.

    python3 -c "from common.core.spread import *; print(times_as_fast([1., 1.1, 1.], [.5, .6, .5]))"

The interval of a mean comes from the means of up to ten blocks of iterations that follow one
another (batch means): on a busy machine an iteration resembles its neighbours, so taking each for
an independent measurement would make the interval too narrow. What changes between two runs on
the same machine, and not within either, no such interval can know.
"""

from collections.abc import Sequence
from math import hypot, inf, sqrt
from statistics import fmean, stdev

BLOCKS = 10
# Student's t by degrees of freedom, 1 to 9: 95 % of a mean's errors are within so many standard
# errors.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
NOTABLE = 0.005  # a ratio closer to 1 than this is written as 1.00


def student(freedom: int) -> float:
    """Student's t for 95 %; infinite without a degree of freedom, and that of 9 beyond them."""
    return STUDENT[min(freedom, len(STUDENT)) - 1] if freedom > 0 else inf


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the mean's 95 % interval, values in the order measured.

    Infinite for a single value.
    """
    blocks = min(BLOCKS, len(values))
    if blocks < 2:
        return inf
    edges = [len(values) * block // blocks for block in range(blocks + 1)]
    means = [fmean(values[start:end]) for start, end in zip(edges, edges[1:], strict=False)]
    return student(blocks - 1) * stdev(means) / sqrt(blocks)


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Returns True if the two means are further apart than their intervals allow."""
    return abs(fmean(one) - fmean(other)) > hypot(half_interval(one), half_interval(other))


def speed_in_words(base: Sequence[float], other: Sequence[float]) -> str:
    """How many times as fast `other` is as `base`; where that may be 1, its 95 % interval.

    The interval is Fieller's, so that it holds 1 exactly where the means do not differ; "unknown"
    where the spread is so wide that it has no upper end.
    """
    (one, two), (of_one, of_two) = map(fmean, (base, other)), map(half_interval, (base, other))
    if differ(base, other):
        return f"{one / two:.2f}"
    if two <= of_two:
        return "unknown"
    root = sqrt((one * of_two) ** 2 + (two * of_one) ** 2 - (of_one * of_two) ** 2)
    low, high = ((one * two + sign * root) / (two**2 - of_two**2) for sign in (-1, 1))
    ends = f"{max(0.0, low):.2f}", f"{high:.2f}"
    return " to ".join(dict.fromkeys(ends))


def times_as_fast(base: Sequence[float], other: Sequence[float]) -> float | None:
    """How many times as fast `other` is as `base`, from seconds; None within the spread."""
    ratio = fmean(base) / fmean(other)
    return ratio if abs(ratio - 1) >= NOTABLE and differ(base, other) else None
