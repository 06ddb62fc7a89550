"""Simulated messages give the closed forms when nobody straggles, and wait for whoever does.

Mutations that turn this red: a link that carries two messages at once (drop
`departed` or `free`), no latency, a rank that ends before it began, N-1 steps
for 2 (N-1) on the outermost level, no all-gather, a bucket that does not wait for the one before,
the fastest link for the flat ring, random numbers without the seed.
"""

import numpy as np
import pytest

from studies.prediction import forms
from studies.prediction.forms import Level, LinkCost
from studies.prediction.simulation import (
    AVERAGING,
    Cluster,
    Hop,
    Work,
    efficiency,
    funnel,
    ring,
    step_seconds,
)

FAST, SLOW = LinkCost(1e-10, 1e-6), LinkCost(1e-9, 5e-5)
CLUSTER = Cluster((Level(4, FAST), Level(3, SLOW), Level(2, LinkCost(4e-9, 1e-4))))
WORK = Work(ready=(0.3, 0.5, 1.0), sizes=(1e8, 2e7, 1e6))
SIZE = sum(WORK.sizes)


def hierarchical(size: float) -> float:
    """A ring in each group of every level, over what the level below has left to each member.

    The members of a group share its link to the next level, and each has 1/size of the gradient:
    together the link carries a whole gradient's ring.
    """
    return sum(forms.ring(size, level.size, level.link) for level in CLUSTER.levels)


def test_a_rings_messages_by_hand():
    # Rank 1 is late by 1 s. Rank 2 gets its block at 1.3 and passes it on to 0, which has it at
    # 1.6; what 1 has got from 0 leaves when its link is free, at 1.2, and is there at 1.5.
    assert ring([0, 1, 0], 2, Hop(0.2, 0.1)) == pytest.approx([1.6, 1.0, 1.5])
    assert ring([0, 0], 2, Hop(0.2, 0.1)) == pytest.approx([0.6, 0.6])
    assert ring([5.0], 0, Hop(1, 1)) == ring([5.0], 3, Hop(1, 1)) == [5.0]


def test_a_funnel_serves_one_at_a_time_whoever_comes_first():
    assert funnel([2.0, 0.0, 0.5], Hop(1.0, 0.1)) == pytest.approx([1.1, 2.1, 3.1])
    assert funnel([9.0, 0.0], Hop(1.0, 0.1)) == pytest.approx([1.1, 10.1])


@pytest.mark.parametrize("name, seconds", [
    ("gather/scatter", 1 + forms.gather_scatter(SIZE, 24, CLUSTER.slowest)),
    ("ring", 1 + forms.ring(SIZE, 24, CLUSTER.slowest)),
    ("hierarchical", 1 + hierarchical(SIZE)),
    ("ring, overlapped", forms.queue(WORK.ready, [forms.ring(size, 24, CLUSTER.slowest)
                                                  for size in WORK.sizes])),
    ("hierarchical, overlapped", forms.queue(
        WORK.ready, [hierarchical(size) for size in WORK.sizes])),
])
def test_without_stragglers_it_is_the_closed_form(name, seconds):
    assert step_seconds(name, CLUSTER, WORK) == pytest.approx(seconds, rel=1e-9)


def test_every_strategy_has_its_closed_form_above():
    assert len(AVERAGING) == 5
    assert CLUSTER.slowest == LinkCost(4e-9, 1e-4)  # the pace of a flat ring


@pytest.mark.parametrize("ranks", [128, 4096])
def test_thousands_of_ranks_too(ranks):
    cluster = Cluster((Level(ranks, FAST),))
    assert step_seconds("ring", cluster, WORK) == pytest.approx(1 + forms.ring(SIZE, ranks, FAST))


@pytest.mark.parametrize("name", AVERAGING)
def test_stragglers_are_waited_for(name):
    late = Work(WORK.ready, WORK.sizes, spread=0.2)
    random = np.random.default_rng(1)
    slowest = max(late.draw(24, random)[-1])
    seconds = step_seconds(name, CLUSTER, late)
    assert seconds >= slowest
    if name != "gather/scatter":  # there, who is early does not wait in line at the root
        assert seconds > step_seconds(name, CLUSTER, WORK)
    assert seconds == step_seconds(name, CLUSTER, late)  # equal seeds, equal stragglers
    assert seconds != step_seconds(name, CLUSTER, late, seed=2)


def test_the_median_rank_takes_the_median_time():
    drawn = Work((1.0,), (1.0,), spread=0.5).draw(10001, np.random.default_rng(3))[0]
    assert np.median(drawn) == pytest.approx(1.0, rel=0.03)
    assert np.std(np.log(drawn)) == pytest.approx(0.5, rel=0.03)


def test_efficiency_is_one_where_nothing_is_sent():
    assert efficiency("ring", Cluster((Level(1, SLOW),)), WORK) == 1
    assert efficiency("ring", CLUSTER, WORK) == pytest.approx(
        1 / (1 + forms.ring(SIZE, 24, CLUSTER.slowest)))
