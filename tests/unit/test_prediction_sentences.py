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
from studies.prediction.tables import errors_in_words, scaling_table, step_table, which_strategy
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
    assert said.startswith(f"{ranks} nodes, {rate}: {best}, {found[best].seconds:.3f} s a step (")
    equal = {name for name, each in found.items() if name != best and each.error is not None
             and found[best].error is not None
             and each.seconds * max(0, 1 - each.error) <= found[best].seconds * (
                 1 + found[best].error)}
    listed = re.search(r"\); (.*): as fast within the error$", said)
    for name in model.costs:  # names have commas in them
        rest = (listed[1] if listed else "").split(", ")
        assert (name in equal) == any(", ".join(rest[start:start + 1 + name.count(", ")]) == name
                                      for start in range(len(rest))) or any(
            name != other and name in other for other in equal)
    outside = not model.measured[0] <= ranks <= model.measured[1]
    assert ("were measured: no error bar)" in said) == (
        outside and model.errors[best] is not None)


def hold_scaling(model: Calibration, rates: list[str]) -> None:
    table, most = scaling_table(model, rates), model.measured[1]
    assert f"{most} nodes are the most that were measured" in table
    assert ("One node was not measured" in table) == (model.measured[0] > 1)
    for name, cells in rows_of(table).items():
        for rate, cell in zip(rates, cells, strict=True):
            steps = [model.seconds(name, ranks, model.link(payload_rate(rate)))
                     for ranks in range(1, most + 1)]
            pays = next((number for number in range(1, most)
                         if steps[number] >= steps[number - 1]), most)
            nodes, speed = re.fullmatch(r"(?:all )?(\d+) nodes?, (\d+) images/s", cell).groups()
            assert int(nodes) == pays and cell.startswith("all") == (pays == most)
            assert float(speed) == pytest.approx(model.batch / steps[pays - 1], abs=0.6)


def hold_errors(draw: random.Random) -> None:
    found = [Check(draw.randint(2, 4), draw.choice(RATES), draw.choice(list(STRATEGIES)),
                   1.0, Prediction(draw.uniform(0.5, 1.5), draw.choice([None, 0.05, 0.3])))
             for _ in range(draw.randint(1, 12))]
    said = errors_in_words(found)
    off = [abs(each.predicted.seconds - 1) for each in found]
    worst = found[off.index(max(off))]
    assert said.startswith(
        f"{len(found)} steps of unseen cells: error {100 * median(off):.1f} % in the median, "
        f"{100 * max(off):.1f} % at worst ({worst.name}, {worst.nodes} nodes, {worst.rate}); ")
    barred = [each for each in found if each.predicted.error is not None]
    held = sum(each.predicted.seconds * (1 - each.predicted.error) <= 1
               <= each.predicted.seconds * (1 + each.predicted.error) for each in barred)
    assert said.endswith(f"; {held} of the {len(barred)} with an error bar within it" if barred
                         else "; not enough data for an error bar")


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
