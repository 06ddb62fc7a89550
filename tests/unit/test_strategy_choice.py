"""The ranking of strategies: what the turns can tell, and what they cannot.

Mutations that turn this red: ratios of means in the place of ratios within a round; an interval of
a single round that is not infinite; name a wire that no program takes.
"""

from math import isinf

import pytest

from benchmarks.strategy_choice.ranking import (
    CANDIDATES,
    command,
    ranking,
    ranking_table,
    verdict,
    whether_hosts_pay,
)
from common.options.command_line import parse_command_line

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
