"""Conclusions from measured seconds: intervals of means, and silence within the spread.

Mutations that turn this red: 1.96 for Student's t; single iterations for blocks; `stdev` without
the root of their number; one interval for both; `>` for `<` in compare_seconds; NOTABLE = 0;
half_interval([x]) of 0.
"""

import random
import re
from math import inf
from statistics import stdev

import pytest

from common.core.spread import differ, half_interval, speed_in_words, student, times_as_fast
from common.report import compare_seconds
from tests.facts import says


def test_the_interval_of_three_by_hand():
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.30 / 3**0.5)
    assert half_interval([1.0]) == inf and half_interval([2.0, 2.0]) == 0
    assert student(0) == inf and student(50) == student(9) == 2.26


def test_intervals_hold_their_promise():
    draw = random.Random(1)
    for count in (2, 3, 8, 39):
        missed = sum(abs(sum(values) / count) > half_interval(values) for values in (
            [draw.gauss() for _ in range(count)] for _ in range(2000)))
        assert 60 <= missed <= 145  # of 100 on average


def test_neighbours_that_resemble_each_other_do_not_make_it_narrow():
    draw = random.Random(1)
    values = [level for level in (draw.gauss() for _ in range(8)) for _ in range(50)]
    assert half_interval(values) > 3 * 2 * stdev(values) / 400**0.5


@pytest.mark.parametrize("base, other, times", [
    ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], 2.0), ([1.0, 1.1, 0.9], [1.05, 1.15, 0.95], None),
    ([1.004] * 5, [1.0] * 5, None), ([1.0] * 5, [1.01] * 5, 1 / 1.01), ([2.0], [1.0], None)])
def test_a_ratio_within_the_spread_is_none(base, other, times):
    assert times_as_fast(base, other) == (times and pytest.approx(times))


@pytest.mark.parametrize("base, other, said", [
    ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], "2.00"), ([1.0] * 5, [1.0] * 5, "1.00"),
    ([2.0], [1.0], "unknown"), ([1.0, 1.1], [0.5, 2.0], "unknown"),
    ([1.0, 3.0], [1.0, 1.01], "0.00 to 14.67")])
def test_a_speed_says_its_interval_where_it_may_be_one(base, other, said):
    assert speed_in_words(base, other) == said


def test_the_interval_holds_one_exactly_where_the_means_do_not_differ():
    draw = random.Random(2)
    for _ in range(300):
        base, other = ([draw.gauss(at, 0.2) for _ in range(8)] for at in (1.0, 1.2))
        said = speed_in_words(base, other)
        assert (" to " in said) is not differ(base, other), said
        low, high = (map(float, said.split(" to ")) if " to " in said else (1, 1))
        assert low <= 1 <= high


def test_both_spreads_count():
    steady, wild = [1.0, 1.0, 1.0], [1.5, 2.5, 0.8]
    assert not differ(steady, wild) and not differ(wild, steady)
    assert differ(steady, [1.5, 1.6, 1.4])


def test_two_runs_are_compared_in_words_that_follow():
    names = "a", "b"
    said = compare_seconds(names, [2.0, 2.0], [1.0, 1.0])
    assert numbers(said) == ["2.00", "1.00", "2.00"] and re.search(r"\bb .*fast.* a$", said)
    said = compare_seconds(names, [0.682] * 2, [0.885] * 2)
    assert numbers(said) == ["0.682", "0.885", "1.30"] and re.search(r"\ba .*fast.* b$", said)
    said = compare_seconds(names, [1.0, 1.2], [1.1, 0.9])
    assert numbers(said) == ["1.10", "1.00"] and says(said, "spread")
    said = compare_seconds(names, [1.0], [2.0])
    assert numbers(said) == ["1.00", "2.00"] and not says(said, "spread")


def numbers(sentence: str) -> list[str]:
    return re.findall(r"[\d.]+", sentence)
