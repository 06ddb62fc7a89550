"""Schedules are torch's, as pure functions of the step; warm-up is a straight line.

Mutations that turn this red: count steps from 1; LAST_DIVISOR 1e3; drop the warm-up from the
cosine's or the line's length; apply a constant rate to an optimizer with two groups.
"""

import pytest
import torch
from torch.optim import lr_scheduler

from common.settings.types import ScheduleChoice
from common.step.schedules import Schedule

EPOCHS, ITERATIONS, PEAK = 6, 7, 0.4
TOTAL = EPOCHS * ITERATIONS
TORCHS = {
    "constant": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 1.0),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2 * ITERATIONS, 0.7),
    "one-cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, PEAK, TOTAL,
                                                           cycle_momentum=False),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, TOTAL),
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, TOTAL),
}


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate}
                            for rate in rates], momentum=0.9)


def schedule(name: str, warmup_epochs: float = 0.0) -> Schedule:
    return Schedule(ScheduleChoice(name, warmup_epochs, epochs=2, factor=0.7), PEAK, EPOCHS,
                    ITERATIONS)


@pytest.mark.parametrize("name", TORCHS)
def test_the_rates_are_torchs(name):
    theirs = optimizer(PEAK)
    scheduler = TORCHS[name](theirs)
    for step in range(TOTAL):
        assert schedule(name).rate(step) == pytest.approx(theirs.param_groups[0]["lr"], abs=1e-12)
        theirs.step()
        if step < TOTAL - 1:
            scheduler.step()


@pytest.mark.parametrize("name", ["constant", "step", "cosine", "linear"])
def test_warm_up_rises_to_the_peak_in_equal_steps(name):
    warm = schedule(name, warmup_epochs=1)
    rates = [warm.rate(step) for step in range(ITERATIONS)]
    assert rates == pytest.approx([PEAK * (step + 1) / ITERATIONS for step in range(ITERATIONS)])
    assert warm.rate(ITERATIONS) == pytest.approx(PEAK)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_after_warm_up_it_still_ends_at_nothing(name):
    assert schedule(name, 2).rate(TOTAL) == pytest.approx(0.0, abs=1e-15)
    middle = 2 * ITERATIONS + (TOTAL - 2 * ITERATIONS) // 2
    assert schedule(name, 2).rate(middle) == pytest.approx(PEAK / 2)


def test_one_cycle_peaks_where_its_rise_ends():
    rates = [schedule("one-cycle", 2).rate(step) for step in range(TOTAL)]
    assert rates.index(max(rates)) == 2 * ITERATIONS - 1 and max(rates) == pytest.approx(PEAK)
    assert rates[0] == pytest.approx(PEAK / 25)


@pytest.mark.parametrize("name", ["one-cycle", "cosine", "linear"])
def test_past_the_end_the_rate_stays(name):
    assert schedule(name).rate(TOTAL + 50) == pytest.approx(schedule(name).rate(TOTAL), rel=1e-12)


def test_applied_to_all_groups_but_a_constant_rate_leaves_them_as_they_are():
    two = optimizer(0.1, 0.2)
    schedule("constant").apply(two, 3)
    assert [group["lr"] for group in two.param_groups] == [0.1, 0.2]
    schedule("step").apply(two, 2 * ITERATIONS)
    assert [group["lr"] for group in two.param_groups] == pytest.approx([0.28, 0.28])
