"""The ranking of strategies: what the turns can tell, and what they cannot.

Mutations that turn this red: ratios of means in the place of ratios within a round; an interval of
a single round that is not infinite; name a wire that no program takes; bounds of one split
of the measured cost, or of all that there may be on any measurement.
"""

import random
from math import isinf
from statistics import median

import pytest

from benchmarks.strategy_choice.paying import Paying, paying, paying_in_words
from benchmarks.strategy_choice.ranking import (
    CANDIDATES,
    command,
    ranking,
    ranking_table,
    verdict,
    whether_hosts_pay,
)
from common.options.command_line import parse_command_line
from studies.prediction.fitting import calibrate
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.sources import read_source
from studies.prediction.tables import stops_paying
from tests.grid import PLANTED, cell, grid
from tests.ranks import ROOT

NOISE = [1.0, 1.4, 0.8, 1.2, 1.1]  # the machine's, which all turns of a round share


def planted(**times: float) -> dict[str, list[float]]:
    """Steps in five rounds: so many times the noise, and 1 % more or less in each."""
    return {name: [factor * noise * (1 + (number + len(name)) % 3 / 100)
                   for number, noise in enumerate(NOISE)] for name, factor in times.items()}


def test_a_difference_is_seen_through_noise_that_all_share():
    places = ranking(planted(slow=1.2, fast=1.0, equal=1.005))
    assert [place.name for place in places][-1] == "slow"
    assert places[-1].times == pytest.approx(1.2, abs=0.03) and places[-1].times_error < 0.05
    assert [place.is_as_fast for place in places] == [True, True, False]
    assert places[0].seconds_error > 0.2  # by seconds alone nothing could be told
    assert "1.2" in ranking_table(places, 64).splitlines()[-1]


def test_one_round_tells_nothing():
    places = ranking({"a": [1.0], "b": [9.0]})
    assert isinf(places[1].times_error) and places[1].is_as_fast


def test_the_verdict_names_what_to_start_and_what_is_as_fast():
    steps = planted(**{"all-reduce": 1.0, "reduce-scatter": 1.001, "gather-scatter": 3.0})
    said = verdict(ranking(steps), 4)
    assert "4 hosts take" in said and "gather-scatter" not in said
    assert "As fast within the spread" in said
    rounded = verdict(ranking(planted(**{"overlapped-all-reduce, bf16 wire": 0.5,
                                         "Part Three": 0.8})), 4)
    assert "PartTwo/main.py --sync overlapped-all-reduce --wire bf16." in rounded
    assert "of those that round nothing take Part Three, 1.6" in rounded


@pytest.mark.parametrize("alone, said", [(3.0, "times as fast, and pay."), (0.5, "do NOT pay."),
                                         (1.005, "within the spread")])
def test_one_host_may_be_as_good(alone, said):
    hosts, = planted(fast=1.0).values()
    assert said in whether_hosts_pay([alone * each for each in NOISE], hosts, 4)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_can_be_started(name):
    program, *flags = command(name).split()
    settings, _ = parse_command_line(program.removesuffix("/main.py"), flags)
    assert settings.wire == ("bf16" if "bf16" in name else "float32")


RATE = payload_rate("10gbit")
MADE_ON = grid()["made_on"]


def measured_cells(name: str, spread: float, draw: random.Random) -> list[Cell]:
    """One host, and four that share a machine, in five rounds whose steps spread so much."""
    cells = [cell(1, RATE), cell(4, RATE)]  # type: ignore[arg-type]
    for each, names in zip(cells, ((COMPUTE_ONLY,), (COMPUTE_ONLY, name)), strict=True):
        each["variants"] = {
            one: {**variant, "steps": [variant["steps"][0] * draw.lognormvariate(0, spread)
                                       for _ in range(5)]}
            for one, variant in each["variants"].items() if one in names}
    return cells


@pytest.mark.parametrize("name", ["all-reduce", "overlapped-all-reduce"])
def test_the_bounds_on_how_many_hosts_pay_hold_the_planted_number(name):
    draw = random.Random(3)
    truth, _ = stops_paying(PLANTED.on_own_machines(), name, RATE)
    for spread in (0, *[0.03] * 4):
        found = paying(name, measured_cells(name, spread, draw), MADE_ON, PLANTED.latency)
        assert found.low <= truth <= found.high


@pytest.mark.parametrize("record", ["sync_grid", "sync_cross_step"])
def test_one_recorded_cell_has_bounds_that_hold_what_all_cells_say(record):
    source = read_source([ROOT / f"docs/results/{record}.json"], None)
    machine, batch = source.machine, source.batch
    made_on = {"cores": machine.cores, "machines": machine.machines, "threads": machine.threads,
               "batch": batch}
    model = calibrate(source.cells, machine, batch, source.latency)
    wide = []
    for each in (each for each in source.cells if each["rate"] == "1gbit"):
        seen = {**each, "rate": payload_rate(each["rate"])}
        alone = {**seen["variants"][COMPUTE_ONLY]}
        alone["steps"] = [model.compute(1).seconds] * len(alone["steps"])
        for name in model.costs:
            truth, _ = stops_paying(model.on_own_machines(), name, seen["rate"])
            found = paying(name, [{**seen, "nodes": 1, "variants": {COMPUTE_ONLY: alone}}, seen],
                           made_on, source.latency)
            assert found.low <= truth <= found.high, (name, each["nodes"], each["rate"])
            wide.append(found.high / found.low)
    assert median(wide) <= 3  # wide bounds hold anything


def test_how_many_hosts_pay_is_said_with_its_bounds():
    said = paying_in_words("all-reduce", Paying(7, 500.4, 5, 9))
    assert "up to 7 (500 samples/s)." in said and "the last that pays is 5 to 9 hosts." in said
    assert "a second host does not pay with all-reduce." in paying_in_words(
        "all-reduce", Paying(1, 500.4, 1, 1))
