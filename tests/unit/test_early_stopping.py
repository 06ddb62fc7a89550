"""When training stops is a pure function of the validation losses.

Mutations that turn this red: `>` for `>=` before patience; compare with the best loss instead of
the one at the last progress; `<=` for `<` in progress; best_epoch takes the last of equals.
"""

import pytest

from common.run.run_end import best_epoch, should_stop


@pytest.mark.parametrize("losses, patience, min_delta, stops", [
    ([], 1, 0.0, False),
    ([1.0], 1, 0.0, False),
    ([1.0, 1.0], 1, 0.0, True),
    ([1.0, 0.9, 0.8], 1, 0.0, False),
    ([1.0, 0.9, 0.95], 2, 0.0, False),
    ([1.0, 0.9, 0.95, 0.92], 2, 0.0, True),
    ([1.0, 0.75, 0.5], 1, 0.25, True),          # a gain of just min_delta does not count
    ([1.0, 0.9, 0.8, 0.7], 3, 0.25, False),     # small gains add up since the last progress
    ([1.0, 0.9, 0.85, 0.8], 3, 0.25, True),
    ([1.0, float("nan"), float("nan")], 2, 0.0, True),
])
def test_stops(losses, patience, min_delta, stops):
    assert should_stop(losses, patience, min_delta) == stops


def test_once_stopped_it_stays_stopped():
    losses = [1.0, 1.0, 1.0, 0.1]
    assert should_stop(losses[:3], 2, 0.0) and should_stop(losses, 2, 0.0)


def test_the_best_epoch_counts_from_one_and_is_the_first_of_equals():
    assert best_epoch([0.5, 0.2, 0.3, 0.2]) == 2
