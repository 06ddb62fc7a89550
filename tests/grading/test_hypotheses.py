"""The cause of a wrong gradient is recognised by its numbers alone, without processes.

Mutations that turn this red: a row of HYPOTHESES less; ENOUGH = 0 (a tensor of one number is any
sum); the last step's instead of this step's samples in Truth.counts; `first_step=0` for stale, or
`atol=1e-5`; no `world > 2`.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from studies.grading import grading, rounding
from studies.grading.cells import Truth, truth
from studies.grading.finding import HEADLINES, Finding
from studies.grading.findings import findings
from studies.grading.messages import Seen, Settled
from studies.grading.scenarios import EVERYWHERE, NAN, Scenario, backward
from studies.grading.session import Outcome, SeenStep
from studies.grading.socket_bytes import Traffic
from studies.grading.training import RATE
from tests.facts import says

EQUAL, UNEVEN, ODD = EVERYWHERE[:3]
ENOUGH, SECRET = 1 << 30, 7
Result = Callable[[Truth, int, int, int], np.ndarray]
"""A function from (truth, step, rank, tensor) to the numbers of a gradient."""


def simulated(result: Result, scenario: Scenario = EQUAL, world: int = 3, sent: int = 0,
              tolerance: float = 0.0) -> Outcome:
    """The outcome of a strategy that left these numbers on every rank."""
    facts = truth(scenario, world, SECRET)
    steps = []
    for step in range(scenario.steps):
        looks = [seen([result(facts, step, rank, tensor) for tensor in range(len(facts.names))])
                 for rank in range(world)]
        steps.append(SeenStep(looks, [Settled(each.gradients) for each in looks],
                          [Traffic(sent, ENOUGH)] * world))
    return Outcome(scenario, world, steps, tolerance, SECRET)


def finding(outcome: Outcome) -> Finding | None:
    """The first."""
    return next(iter(findings(outcome)), None)


def seen(gradients: list[np.ndarray]) -> Seen:
    zeros = [np.zeros_like(each) for each in gradients]
    return Seen(list(gradients), "", False, (zeros, zeros, [-RATE * each for each in gradients]),
                False)


def mean(facts, step, rank, tensor):
    return facts.mean(step, tensor)


def local(facts, step, rank, tensor):
    return facts.local[step][rank][tensor]


def parts(facts, step, tensor):
    return [rows[tensor] for rows in facts.local[step]]


def weighted(facts, step, rank, tensor):
    return np.average(parts(facts, step, tensor), 0, facts.scenario.step_shards[step][:facts.world])


def rotated(facts, step, rank, tensor):
    tensors = len(facts.names)
    return np.mean([local(facts, step, each, (tensor + each) % tensors)
                    for each in range(facts.world)], 0)


def only(tensors, result):
    """`result` in some tensors, the mean in the others."""
    return lambda facts, step, rank, tensor: (
        result if tensor in tensors else mean)(facts, step, rank, tensor)


def on(ranks, result):
    return lambda facts, step, rank, tensor: (
        result if rank in ranks else mean)(facts, step, rank, tensor)


def changed(change, result=mean):
    return lambda *where: change(result(*where))


@pytest.mark.parametrize(("id", "result", "scenario"), [
    ("nothing-averaged", local, EQUAL),
    ("sum-not-divided", changed(lambda row: 3 * row), EQUAL),
    ("wrong-divisor", changed(lambda row: row / 3), EQUAL),
    ("wrong-divisor", changed(lambda row: row * 3 / 2), ODD),
    ("weighted-again", weighted, UNEVEN),
    ("float32-arithmetic", changed(lambda row: row.astype(np.float32)), EQUAL),
    ("rounded", changed(lambda row: row.astype(np.float16)), EQUAL),
    ("rounded", changed(lambda row: row.round(2)), EQUAL),
    ("stale", lambda facts, step, rank, tensor: facts.mean(step - 1, tensor) if step else (
        local(facts, step, rank, tensor)), EQUAL),
    ("stale", lambda facts, step, rank, tensor: sum(
        facts.mean(each, tensor) for each in range(step + 1)), EQUAL),
    ("stale", lambda facts, step, rank, tensor: facts.mean(step, tensor) + (
        1e-5 * facts.mean(step - 1, tensor) if step else 0), EQUAL),
    ("zero", changed(np.zeros_like), EQUAL),
    ("tensor-skipped", only([2], local), ODD),
    ("tensor-skipped", only([1, 3], local), EQUAL),
    ("some-ranks-only", on([1], local), EQUAL),
    ("some-ranks-only", on([1, 2], changed(lambda row: 3 * row)), EQUAL),
    ("mixed-shapes", changed(lambda row: row[::-1]), EQUAL),
    ("mixed-shapes", lambda facts, step, rank, tensor: facts.mean(step, (tensor + 1) % 5), EQUAL),
    ("wrong-order", rotated, EQUAL),
    ("ranks-left-out", lambda facts, step, rank, tensor: local(facts, step, 0, tensor), EQUAL),
    ("ranks-left-out", lambda facts, step, rank, tensor: np.mean(
        parts(facts, step, tensor)[:2], 0), EQUAL),
    ("ranks-count-unequally", lambda facts, step, rank, tensor: np.average(
        parts(facts, step, tensor), 0, [1, 2, 1]), EQUAL),
    ("another-operation", lambda facts, step, rank, tensor: np.max(
        parts(facts, step, tensor), 0), EQUAL),
    ("chunks", lambda facts, step, rank, tensor: np.concatenate([
        local(facts, step, rank, tensor)[:9] / 3, facts.mean(step, tensor)[9:]]), EQUAL),
    ("rounded", lambda facts, step, rank, tensor: sum(
        np.floor(part / 3) for part in parts(facts, step, tensor)), EQUAL),
    ("differs", changed(np.sqrt, changed(np.abs)), EQUAL)])
def test_numbers_tell_what_has_happened(id, result, scenario):
    found = finding(simulated(result, scenario))
    assert found is not None and found.id == id, found


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_mean_is_the_gradient_of_one_rank_with_the_whole_batch(world):
    for step in range(UNEVEN.steps):
        shards = [UNEVEN.shard(world, rank, step, SECRET) for rank in range(world)]
        model = UNEVEN.model(0)
        backward(model, torch.cat(shards), 1.0)
        facts = truth(UNEVEN, world, SECRET)
        for tensor, parameter in enumerate(model.parameters()):
            np.testing.assert_allclose(facts.mean(step, tensor), parameter.grad.flatten(),
                                       rtol=0, atol=1e-14)


@pytest.mark.parametrize("scenario", EVERYWHERE)
def test_the_mean_is_right(scenario):
    assert finding(simulated(mean, scenario, world=4, sent=ENOUGH)) is None


def test_a_sentence_says_what_and_where():
    found = finding(simulated(only([1], on([2], local))))
    assert found is not None and (found.tensor, found.rank) == ("first.bias", 2)
    assert found.id == "some-ranks-only"
    assert says(found.sentence, HEADLINES[found.id], "'first.bias'", "2 of 5", "rank 2", "rank 0",
                "3 ranks", "step 1")


@pytest.mark.parametrize("sent, id", [(5000, "not-in-place"), (100, "nothing-averaged")])
def test_messages_without_effect_are_told_from_no_messages(sent, id):
    found = finding(simulated(local, sent=sent))
    assert found is not None and found.id == id


def test_a_tolerance_allows_no_different_means():
    def unlike(facts, step, rank, tensor):
        return facts.mean(step, tensor) * (1 + 0.01 * (rank == 2))

    found = finding(simulated(unlike, tolerance=0.1, sent=ENOUGH))
    assert found is not None and (found.id, found.rank) == ("ranks-differ", 2)


def test_a_declared_tolerance_allows_rounding_and_no_sum():
    half = changed(lambda row: row.astype(np.float16).astype(float))
    assert finding(simulated(half, tolerance=1e-2, sent=ENOUGH)) is None
    found = finding(simulated(changed(lambda row: 3 * row, half), tolerance=1e-2))
    assert found is not None and found.id == "sum-not-divided"


def test_a_right_mean_that_nobody_sent_did_not_come_by_messages():
    for sent, tolerance in ((0, 0.0), (200, 0.0), (0, 0.1)):
        found = finding(simulated(mean, sent=sent, tolerance=tolerance))
        assert found is not None and found.id == "nothing-sent"
    assert finding(simulated(mean, sent=120 * 8 // 4, tolerance=0.0)) is None
    assert finding(simulated(mean, sent=120 // 8, tolerance=0.1)) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 5e-324, -0.0, 1e150])
def test_no_numbers_stop_the_grader(value, recwarn):
    for result in (changed(lambda row: np.full_like(row, value)), changed(lambda row: row * value),
                   on([0], changed(lambda row: row + value)),
                   changed(lambda row: np.where(np.arange(row.size) % 3, row, value))):
        for world, scenario in product((1, 2), (EQUAL, ODD, NAN)):
            with np.errstate(all="ignore"):
                outcome = simulated(result, scenario, world)
            assert grading._check(world, scenario, outcome)
    assert not [each.message for each in recwarn.list]


@pytest.mark.parametrize("sign", [1, -1])
def test_multiples_are_told_from_others_whatever_their_sign(sign):
    row = sign * np.float32([1e4, 2e4, 12345.7]).astype(float).round(1)
    assert rounding._is_near_multiples(row + sign * 1e-4, 0.1)


@pytest.mark.parametrize(("result", "id"), [
    (mean, None), (changed(np.nan_to_num), "nan"),
    (changed(lambda row: row * np.where(np.isnan(row).any(), np.nan, 1)), "nan")])
def test_what_becomes_of_a_nan(result, id):
    found = finding(simulated(result, NAN))
    assert (found and found.id) == id


@pytest.mark.parametrize(("world", "is_clear"), [(2, False), (3, True)])
def test_two_ranks_do_not_show_what_more_would(world, is_clear):
    twice = simulated(changed(lambda row: row / world), world=world)
    reduced = simulated(on(range(1, world), local), world=world)
    for outcome, hint in ((twice, "twice"), (reduced, "dist.reduce")):
        found = finding(outcome)
        assert found is not None and says(found.sentence, hint) == is_clear
