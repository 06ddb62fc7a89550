"""Planted mistakes are told apart, and strategies that are right are called so.

All of them are graded by the slow tests, and by python3 -m tests.grading.table; here one of each
kind, on one and two ranks unless it takes more.

Mutations that turn this red: a row of HYPOTHESES less; `late` of Settled left empty; the sign of
two-not-three or of single-rank left out of mistakes(); drop dist.all_reduce from a right one;
"chunks" in ON_ANY_RANK; no sums.watch(); no first_unwaited; `True` in _is_whole; no OTHER_ENDS.
"""

import multiprocessing

import pytest

import tests.ranks  # noqa: F401  (what the forkserver has loaded)
from studies.grading.scenarios import BASIC, EVERYWHERE, LOST, NAN, PARTLY, PLAN, UNUSED, ZERO
from tests.facts import says
from tests.grading.table import RIGHT, WRONG, expected, graded, planted

UNEVEN, STRIDED, LARGE = EVERYWHERE[1], EVERYWHERE[3], EVERYWHERE[4]
# What it takes to see the mistake.
QUICK = {
    "nothing_averaged__hook_on_a_copy": {2: [BASIC]},
    "sum_not_divided__send_recv": {2: [BASIC]},
    "wrong_divisor__the_others_only": {2: [BASIC], 3: [BASIC]},
    "rounded__integers_on_the_wire": {2: [BASIC]},
    "tensor_skipped__biases": {2: [BASIC]},
    "some_ranks_only__send_without_recv": {3: [BASIC]},
    "some_ranks_only__reduce_in_place": {2: [BASIC], 3: [BASIC]},
    "weights_averaged__after_the_step": {2: [BASIC]},
    "weighted_again__freed_of_weight": {2: [BASIC, UNEVEN]},
    "not_in_place__name_bound": {2: [BASIC]},
    "stale__async_until_next_step": {2: [BASIC]},
    "wrong_order__rotated_flat": {3: [BASIC]},
    "mixed_shapes__transposed": {2: [BASIC]},
    "rank_left_waiting__one_message_too_few": {2: [BASIC]},
    "rank_left_waiting__hooks_that_only_one_rank_calls": {2: [BASIC, PARTLY]},
    "two_not_three__swaps_with_a_neighbour": {2: [BASIC], 3: [BASIC]},
    "none_gradient__every_parameter": {2: [BASIC, UNUSED]},
    "zero_gradient__counts_who_has_one": {3: [BASIC, ZERO]},
    "chunks__all_gather_one_off": {2: [BASIC]},
    "not_contiguous__view": {2: [BASIC, STRIDED]},
    "float32__buffer": {2: [BASIC]},
    "nan__spread_by_scale": {3: [BASIC, NAN]},
    "peer_lost__ignored": {3: [BASIC, LOST]},
    "too_many_bytes__all_gather": {3: [BASIC, LARGE]},
    "single_rank__no_others": {1: [BASIC], 2: [BASIC]},
    "changes_model__buffers": {2: [BASIC]},
    "not_waited__async": {2: [BASIC]},
    "not_waited__all_but_the_last": {1: [BASIC]},  # where the numbers show nothing
    "changed_under_way__divided_in_the_hook": {2: [BASIC]},
}
QUICK_RIGHT = {"BucketsInHooks": PLAN, "eight_bits": {3: [BASIC, LARGE, NAN, LOST]},
               "WaitsForEachPart": {2: [BASIC]}, "DividesInAFuture": {2: [BASIC]}}


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_told_from_the_others(name):
    found, grade = graded(WRONG, name, plan=QUICK[name])
    assert found == expected(WRONG, name), grade.diagnosis
    assert [each.id for each in grade.mistakes] == [found]
    assert says(grade.mistakes[0].sentence, "dist.reduce") == name.startswith("some_ranks_only")
    assert grade.exit_code == 1 and grade.correctness < 1 or "too_many" in name
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("name", QUICK_RIGHT)
def test_what_is_right_is_called_right(name):
    found, grade = graded(RIGHT, name, plan=QUICK_RIGHT[name])
    assert found == "right", grade.diagnosis
    assert grade.exit_code == 0 and grade.correctness == 1
    assert bool(grade.tolerance) == (name == "eight_bits")


@pytest.mark.slow
@pytest.mark.parametrize("path, name", [(path, name) for path in (RIGHT, WRONG)
                                        for name in planted(path)])
def test_every_planted_strategy(path, name):
    found, grade = graded(path, name)
    assert found == expected(path, name), grade.diagnosis
    assert grade.seconds < 60


def test_the_planted_ones_are_enough():
    kinds = [name.partition("__")[0] for name in planted(WRONG)]
    assert len([kind for kind in set(kinds) if kinds.count(kind) >= 3]) >= 10
    assert len(planted(WRONG)) >= 30 and len(planted(RIGHT)) >= 10
    assert {expected(WRONG, name) for name in QUICK} == {
        expected(WRONG, name) for name in planted(WRONG)} - {"raises", "ranks-left-out"}
