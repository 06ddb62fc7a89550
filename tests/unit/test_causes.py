"""Why runs differ: each cause planted in a log is named, with its flag, and never mistaken.

Mutations that turn this red: FIRST["float32"] ten times as large with MOST_AT_FIRST left out;
GROWTH 100; `<=` to `>=` in difference; algorithms, settings or statistics not looked at in
explanation, or in another order; ranks or virtual nodes left out of _normalised_by;
`has_batch_norm` left out of _algorithms; settings that `explanation` never names among those that
choose the data; statistics without a bound; the first of all instead of the first of the alike as
head; `max` to `min` in sentences; causes not sorted by gravity; a loss's gaps without abs.
"""

import re

import pytest

from common.settings.causes import (
    ALGORITHM,
    DATA,
    EQUAL,
    FAULT,
    ROUNDING,
    SETTING,
    STATISTICS,
    Learned,
    difference,
    sentences,
)
from tests.facts import says

# Measured with VGG-11 on the digits, batches of 32: one rank against four (or itself, reversed).
ROUNDED = {"float32": (2.9e-6, -1.1e-4, 4.3e-4, -2.5e-3, -8.7e-3, -2.0e-2, -9.3e-3, -2.7e-2),
           "bf16": (-5.7e-4, -5.5e-3, 6.1e-3, -3.6e-3, 2.0e-2, -1.8e-2, 2.0e-2, -5.6e-2),
           "float64": (2e-15, 4e-15, 1e-14, 3e-14, 1e-13, 2e-13, 2e-13, 2e-13)}
OWN_STATISTICS = (2.9e-3, -4.3e-3, 2.0e-2, 6.0e-2, 2.1e-2, 4.8e-2, 1.3e-1, 6.6e-2)
NOT_AVERAGED = (2.9e-6, 6.7e-1, 6.8e-1, 6.0e-1, 7.9e-1, 1.8, 1.9, 3.9)
LEADER_ALONE_AVERAGED = (2.9e-6, 2.6e-1, 4.8e-1, 4.9e-1, 5.9e-1, 1.9, 9.3e-1, 3.5)
LOSSES = (2.31, 2.35, 2.30, 2.14, 2.44, 2.01, 2.03, 1.59)


def learned(name="PartOne", ranks=1, apart=(0.0,) * 8, has_batch_norm=True,
            data="", **settings) -> Learned:
    told = {"workload": "digits-vgg11", "batch_size": 32, "seed": 1, "precision": "float32",
            "batch_norm": "synchronised", **settings}
    losses = {(1, step): loss + gap
              for step, (loss, gap) in enumerate(zip(LOSSES, apart, strict=True))}
    return Learned(name, ranks, told, losses, has_batch_norm, data=data)


def at(step: int, gap: float) -> tuple[float, ...]:
    return tuple(gap * (place == step) for place in range(8))


@pytest.mark.parametrize("precision, gaps", ROUNDED.items())
def test_rounding_is_called_rounding_and_float64_removes_it(precision, gaps):
    one = learned(precision=precision)
    other = learned("DDP", 4, gaps, precision=precision)
    assert difference(one, other).cause == ROUNDING
    said, = sentences([one, other])
    assert says(said, "DDP", "PartOne", "rounding", precision, 8) and "FAULT" not in said
    assert "learns" not in said  # ten losses do not show it
    assert ("--precision float64" in said) == (precision != "float64")
    numbers = [float(word) for word in re.findall(r"(?<!\S)[\d.]+(?:e-\d+)?", said)]
    for gap in (abs(gaps[0]), max(map(abs, gaps))):
        assert any(gap <= number <= 2 * gap for number in numbers)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("gaps", [at(0, 5e-3), at(0, -5e-3), NOT_AVERAGED, LEADER_ALONE_AVERAGED],
                         ids=["first", "first, less", "not averaged", "leader alone"])
@pytest.mark.parametrize("ranks, batch_norm", [(1, "synchronised"), (4, "local")])
def test_a_fault_is_never_called_rounding(precision, gaps, ranks, batch_norm):
    same = {"precision": precision, "batch_norm": batch_norm}
    one, other = learned("all-reduce", 4, **same), learned("DDP", 4, gaps, **same)
    if ranks == 1:
        one = learned(**same)
    assert difference(one, other).cause == FAULT
    said, = sentences([one, other])
    assert says(said, "FAULT", "DDP") and "--precision" not in said


def test_no_loss_however_large_lets_a_first_difference_of_5e_3_pass():
    for precision in ROUNDED:
        one, other = (Learned(name, 1, learned(precision=precision).settings, {(1, 0): loss})
                      for name, loss in (("a", 50.0), ("b", 50.005)))
        assert difference(one, other).cause == FAULT


def test_float64_is_held_to_float64():
    one = learned(precision="float64")
    other = learned("DDP", 4, ROUNDED["float32"], precision="float64")
    assert difference(one, other).cause == FAULT


def test_own_statistics_are_named_between_other_numbers_of_ranks_only():
    one, four, more = (learned("PartOne", batch_norm="local"),
                       learned("all-reduce", 4, OWN_STATISTICS, batch_norm="local"),
                       learned("DDP", 4, OWN_STATISTICS, batch_norm="local"))
    assert difference(one, four).cause == STATISTICS
    assert difference(four, more).cause == EQUAL
    because, same = sentences([one, four, more])
    assert says(because, "all-reduce", "DDP", "PartOne", "--batch-norm synchronised")
    assert "--precision" not in because and "FAULT" not in because
    assert says(same, "DDP", "all-reduce", 8) and "PartOne" not in same and "--" not in same


def test_with_virtual_nodes_the_number_of_ranks_changes_no_statistics():
    same = {"virtual_nodes": 4, "batch_norm": "local"}
    one, four = learned(**same), learned("DDP", 4, **same)
    assert difference(one, four).cause == EQUAL
    assert difference(one, learned("DDP", 4, batch_norm="local")).cause == SETTING


def test_a_fault_among_ranks_with_their_own_statistics_is_found_beside_them():
    one, four, wrong = (learned("PartOne", batch_norm="local"),
                        learned("all-reduce", 4, OWN_STATISTICS, batch_norm="local"),
                        learned("DDP", 4, NOT_AVERAGED, batch_norm="local"))
    fault, because = sentences([one, four, wrong])
    assert says(fault, "FAULT", "DDP", "all-reduce") and "PartOne" not in fault
    assert says(because, "PartOne", "--batch-norm synchronised") and "FAULT" not in because


def test_statistics_explain_no_more_than_they_can():
    one = learned(batch_norm="local")
    assert difference(one, learned("DDP", 4, at(0, 0.25), batch_norm="local")).cause == STATISTICS
    assert difference(one, learned("DDP", 4, at(0, 0.35), batch_norm="local")).cause == FAULT


def test_models_without_batch_norm_have_no_statistics():
    one, other = (learned(name, ranks, gaps, has_batch_norm=False, batch_norm="local",
                          accumulate=passes)
                  for name, ranks, gaps, passes in (("PartOne", 1, at(0, 0), 1),
                                                    ("DDP", 4, at(3, 1e-6), 2)))
    assert difference(one, other).cause == ROUNDING


@pytest.mark.parametrize("name, settings, flag", [
    ("local-sgd", {}, "--sync all-reduce"), ("PartTwo/diloco", {}, "--sync all-reduce"),
    ("all-reduce", {"wire": "bf16"}, "--wire float32"),
    ("DDP", {"wire": "bf16"}, "--wire float32"),
    ("DDP", {"accumulate": 2}, "--accumulate 1")])
def test_another_algorithm_is_named(name, settings, flag):
    one, other = learned(seed=2), learned(name, 4, at(5, 0.3), **settings)
    assert difference(one, other).cause == ALGORITHM  # before the seed, which matters less
    said, = sentences([one, other])
    assert says(said, name, flag) and "--precision" not in said and "FAULT" not in said


@pytest.mark.parametrize("settings, flags", [
    ({"seed": 2}, ["--seed"]), ({"precision": "bf16"}, ["--precision"]),
    ({"learning_rate": 0.2, "batch_size": 64}, ["--batch-size", "--learning-rate"])])
def test_another_setting_is_named(settings, flags):
    one, other = learned(), learned("DDP", 4, at(0, 0.3), **settings)
    assert difference(one, other).cause == SETTING
    said, = sentences([one, other])
    assert says(said, "DDP", "PartOne") and "FAULT" not in said
    assert re.findall(r"--[a-z-]+", said) == flags


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_runs_the_largest_difference_is_told(order):
    others = [learned("all-reduce", 4, at(3, 1e-5)), learned("DDP", 4, at(3, 3e-4))][::order]
    said, = sentences([learned(), *others])
    assert says(said, 0.0003, "PartOne", "all-reduce", "DDP") and "1e-05" not in said


def test_runs_without_a_common_step_and_single_runs_say_nothing():
    late = learned()._replace(losses={(9, 0): 1.0})
    assert sentences([learned()]) == sentences([learned(), late]) == []


def test_the_gravest_comes_first_and_each_cause_has_a_sentence_of_its_own():
    said = sentences([learned(), learned("a", 4, ROUNDED["float32"]), learned("b", seed=2),
                      learned("c", 4, NOT_AVERAGED), learned("local-sgd", 4, at(3, 0.1)),
                      learned("d", 4, OWN_STATISTICS, batch_norm="local")])
    facts = [("FAULT", "c"), ("b", "--seed"), ("local-sgd", "--sync all-reduce"),
             ("d", "--batch-norm synchronised"), ("a", "--precision float64")]
    assert all(says(one, *facts) for one, facts in zip(said, facts, strict=True))


@pytest.mark.parametrize("datas, settings, cause", [
    (("a", "b"), {}, DATA), (("a", "b"), {"learning_rate": 0.5}, DATA), (("a", "a"), {}, FAULT),
    (("a", ""), {}, FAULT), (("a", "b"), {"validation": "0.1"}, SETTING),
    (("a", "b"), {"skip_unreadable": True}, DATA), (("a", "a"), {"skip_unreadable": True}, FAULT),
    (("a", "b"), {"workload": "mnist-cnn"}, SETTING)])
def test_other_data_explain_what_no_setting_that_chooses_them_does(datas, settings, cause):
    one = learned(data=datas[0])
    other = learned("other", 1, NOT_AVERAGED, data=datas[1], **settings)
    assert difference(one, other).cause == cause
    assert says(sentences([one, other])[0], "data") == (cause == DATA)


def test_the_part_held_out_for_validation_depends_on_the_seed():
    one, other = (learned(f"{seed}", data=f"{seed}", validation="0.1", seed=seed)
                  for seed in (1, 2))
    assert difference(one, other).cause == SETTING
