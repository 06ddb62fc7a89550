"""Every sentence and table of scripts/predict.py is held against the numbers that it is made of.

The full number of random models is marked slow. Mutations that turn this red, in tables.py:
`>=` for `<=` in which_strategy; the mean for the median of errors; `2 * seconds` in stops_paying.
"""

import random
import re
from dataclasses import replace
from statistics import median

import pytest

from studies.prediction.calibration import Calibration, Check, Prediction
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY
from studies.prediction.model import STRATEGIES, Cost, Machine
from studies.prediction.tables import (
    NO_BAR,
    errors_in_words,
    limits_in_words,
    scaling_table,
    step_table,
    which_strategy,
)
from tests.facts import says
from tests.grid import PLANTED

RATES = ("100mbit", "1gbit", "10gbit", "none")


def random_model(draw: random.Random) -> Calibration:
    """Costs and bars that leave some strategies apart, and others not; some have no bar."""
    names = draw.sample(list(STRATEGIES), draw.randint(1, 5))
    least = draw.randint(1, 3)
    return replace(
        PLANTED, machine=Machine(2, draw.choice([None, 1])), latency=draw.choice([0, 1e-4, 1e-2]),
        costs={name: Cost(draw.choice([0.0, 0.01, 0.3]), draw.uniform(0, 0.1)) for name in names},
        errors={name: draw.choice([None, 0.02, 0.2, 1.5]) for name in (COMPUTE_ONLY, *names)},
        measured=(least, draw.randint(least, 9)))


def rows_of(table: str) -> dict[str, list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:])}


def hold_step_table(model: Calibration, ranks: int, rates: list[str]) -> None:
    rows = rows_of(step_table(model, ranks, rates))
    assert set(rows) == {COMPUTE_ONLY, *model.costs}
    for name, cells in rows.items():
        for rate, cell in zip(rates, cells, strict=True):
            seconds = model.seconds(name, ranks, model.link(payload_rate(rate)))
            said, _, error = cell.partition(" ± ")
            assert float(said) == pytest.approx(seconds, abs=6e-4)
            known = model.errors[name]
            assert bool(error) == (known is not None
                                   and model.measured[0] <= ranks <= model.measured[1])
            assert not error or float(error) == pytest.approx(seconds * known, abs=6e-4)


def hold_which(model: Calibration, ranks: int, rate: str) -> None:
    said = which_strategy(model, ranks, rate)
    found = {name: model.predict(name, ranks, payload_rate(rate)) for name in model.costs}
    best = min(found, key=lambda name: found[name].seconds)
    assert says(said, f"{ranks} nodes", rate, best, f"{found[best].seconds:.3f} s")
    equal = {name for name, each in found.items() if name != best and each.error is not None
             and found[best].error is not None
             and each.seconds * max(0, 1 - each.error) <= found[best].seconds * (
                 1 + found[best].error)}
    others = said.replace(best, "", 1)
    for name in model.costs.keys() - {best}:  # names may be parts of others
        assert (name in equal) == (name in others) or any(
            name != other and name in other for other in (best, *equal))
    least, most = model.measured
    assert says(said, NO_BAR) == (model.errors[best] is None)
    has_bounds = model.errors[best] is not None and least <= ranks <= most
    assert len(re.findall(r"\d+\.\d{3}", said)) == (3 if has_bounds else 1)
    assert has_bounds or says(said, NO_BAR) or says(said, least, most)


def hold_scaling(model: Calibration, rates: list[str]) -> None:
    table, most = scaling_table(model, rates), model.measured[1]
    assert says(table.splitlines()[-1], most)
    one_was_measured = limits_in_words(replace(model, measured=(1, most)))
    assert table.endswith(one_was_measured) == (model.measured[0] == 1)
    for name, cells in rows_of(table).items():
        for rate, cell in zip(rates, cells, strict=True):
            steps = [model.seconds(name, ranks, model.link(payload_rate(rate)))
                     for ranks in range(1, most + 1)]
            pays = next((number for number in range(1, most)
                         if steps[number] >= steps[number - 1]), most)
            nodes, speed = re.findall(r"\d+", cell)
            assert int(nodes) == pays and says(cell, "all") == (pays == most)
            assert float(speed) == pytest.approx(model.batch / steps[pays - 1], abs=0.6)


def hold_errors(draw: random.Random) -> None:
    found = [Check(draw.randint(2, 4), draw.choice(RATES), draw.choice(list(STRATEGIES)),
                   1.0, Prediction(draw.uniform(0.5, 1.5), draw.choice([None, 0.05, 0.3])))
             for _ in range(draw.randint(1, 12))]
    said = errors_in_words(found)
    off = [abs(each.predicted.seconds - 1) for each in found]
    worst = found[off.index(max(off))]
    assert says(said, len(found), f"{100 * median(off):.1f} %", f"{100 * max(off):.1f} %",
                worst.name, f"{worst.nodes} nodes", worst.rate)
    barred = [each for each in found if each.predicted.error is not None]
    held = sum(each.predicted.seconds * (1 - each.predicted.error) <= 1
               <= each.predicted.seconds * (1 + each.predicted.error) for each in barred)
    assert says(said, held, len(barred)) if barred else says(said, NO_BAR)


@pytest.mark.parametrize("cases", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_sentence_holds_for_random_models(cases):
    draw = random.Random(40)
    for _ in range(cases):
        model, rates = random_model(draw), draw.sample(RATES, draw.randint(1, 3))
        ranks = draw.randint(1, 12)
        hold_step_table(model, ranks, rates)
        hold_which(model, ranks, rates[0])
        hold_scaling(model, rates)
        hold_errors(draw)
