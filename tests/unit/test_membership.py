"""The protocol of membership holds in simulated networks, and planted faults of it are found.

Mutations that turn this red: those of FAULTS, which are tried here; `come_as_new` does nothing
(a rank that was left out never comes back); `accepted.remove` left out of `_propose`.
"""

import pytest

from common.cluster import membership
from common.cluster.membership import Group, Member
from tests.membership_simulator import Broken, simulate, simulate_orderly

SEEDS = 150


def members(*ranks: int) -> tuple[Member, ...]:
    return tuple(Member(rank, f"door{rank}", "1") for rank in ranks)


@pytest.mark.parametrize("present, holds", [
    ((0, 1, 2), True), ((1, 2, 3), True), ((0, 3), True), ((1, 2), False), ((0,), False)])
def test_more_than_half_or_half_with_the_first_hold_a_group(present, holds):
    group = Group(0, members(0, 1, 2, 3))
    assert group.is_held_by(members(*present)) == holds
    assert Group.of_json(group.as_json()) == group


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_nobody_hangs_and_no_two_groups_go_on(first):
    for seed in range(first, first + 50):
        simulate(seed)


def test_ranks_that_are_killed_and_started_in_turn_all_train_at_the_end():
    for seed in range(30):
        simulate_orderly(seed)


def both_halves(monkeypatch):
    monkeypatch.setattr(Group, "is_held_by", lambda self, present: True)


def forgets_what_it_has_accepted(monkeypatch):
    monkeypatch.setattr(membership.Standing, "bound_to", lambda self: [])


def founds_whatever_was_before(monkeypatch):
    monkeypatch.setattr(Group, "is_held_by_ranks_of", lambda self, present: True)
    monkeypatch.setattr(membership, "_last_before", lambda *_: None)


FAULTS = [both_halves, forgets_what_it_has_accepted, founds_whatever_was_before]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_protocol_is_found(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(Broken):
        for seed in range(SEEDS):
            simulate(seed)
