"""The ranking of strategies: what the turns can tell, and what they cannot.

Mutations that turn this red: ratios of means in the place of ratios within a round; an interval of
a single round that is not infinite; name a wire that no program takes; `<` for `<=` in is_as_fast.
"""

import random
import re
from math import isinf
from statistics import fmean

import pytest

from common.core.spread import half_interval
from common.options.command_line import parse_command_line
from studies.choosing.ranking import (
    CANDIDATES,
    command,
    ranking,
    ranking_table,
    verdict,
    whether_hosts_pay,
)
from tests.facts import says

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
    assert says(said, "4 hosts", "all-reduce", "reduce-scatter") and "gather-scatter" not in said
    rounded = verdict(ranking(planted(**{"overlapped-all-reduce, bf16 wire": 0.5,
                                         "Part Three": 0.8})), 4)
    assert says(rounded, "PartTwo/main.py --sync overlapped-all-reduce --wire bf16", "Part Three")
    assert re.search(r"\b1\.6\d\b", rounded)


def answer(sentence: str) -> str:
    """The answer to whether hosts pay: "NOT", "spread" where that is not known, or ""."""
    return next((word for word in ("NOT", "spread") if says(sentence, word)), "")


@pytest.mark.parametrize("alone, expected", [(3.0, ""), (0.5, "NOT"), (1.005, "spread")])
def test_one_host_may_be_as_good(alone, expected):
    hosts, = planted(fast=1.0).values()
    said = whether_hosts_pay([alone * each for each in NOISE], hosts, 4)
    assert says(said, "4 hosts", "pay") and answer(said) == expected


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_can_be_started(name):
    program, *flags = command(name).split()
    settings, _ = parse_command_line(program.removesuffix("/main.py"), flags)
    assert settings.wire == ("bf16" if "bf16" in name else "float32")


def random_steps(draw: random.Random) -> dict[str, list[float]]:
    """Some candidates in two to six rounds, some as fast as others and some not."""
    rounds, spread = draw.randint(2, 6), draw.choice([0, 0.001, 0.05, 0.4])
    return {name: [draw.choice([1, 1.01, 1.3, 3]) * draw.lognormvariate(0, spread)
                   for _ in range(rounds)]
            for name in draw.sample(CANDIDATES, draw.randint(1, len(CANDIDATES)))}


@pytest.mark.parametrize("cases", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_sentence_holds_for_random_measurements(cases):
    draw = random.Random(40)
    for _ in range(cases):
        steps, ranks = random_steps(draw), draw.randint(2, 9)
        means = {name: fmean(each) for name, each in steps.items()}
        places, best = ranking(steps), min(means, key=lambda name: means[name])
        said = verdict(places, ranks)
        assert says(said, f"{ranks} hosts", best, command(best))
        ratios = {name: [one / other for one, other in zip(each, steps[best], strict=True)]
                  for name, each in steps.items() if name != best}
        named = {name for name, each in ratios.items() if fmean(each) - half_interval(each) <= 1}
        exact = [name for name in sorted(ratios, key=lambda name: means[name])
                 if best.endswith("bf16 wire") and not name.endswith("bf16 wire")][:1]
        assert re.findall(r"\d+\.\d+", said) == [f"{fmean(ratios[name]):.2f}" for name in exact]
        named.update(exact)
        others = said.replace(command(best), "").replace(best, "", 1)
        for name in ratios:  # some are parts of others
            assert (name in named) == (name in others) or any(
                name != other and name in other for other in (best, *named))
        rows = ranking_table(places, 100).splitlines()[2:]
        for name, row in zip(sorted(means, key=lambda name: means[name]), rows, strict=True):
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert cells[0] == name and float(cells[1].split(" ± ")[0]) == pytest.approx(
                means[name], abs=6e-4)
            assert float(cells[3]) == pytest.approx(100 / means[name], abs=0.6)
        alone = [draw.choice([0.5, 1, 2]) * each for each in steps[best]]
        said = whether_hosts_pay(alone, steps[best], ranks)
        times = [one / other for one, other in zip(alone, steps[best], strict=True)]
        ratio, error = fmean(times), half_interval(times)
        assert answer(said) == ("" if ratio - error > 1 else "NOT" if ratio + error < 1
                                else "spread")
