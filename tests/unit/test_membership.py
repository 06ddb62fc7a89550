"""The protocol of membership holds in simulated networks, and planted faults of it are found.

Mutations that turn this red: those of FAULTS, which are tried here; `come_as_new` does nothing
(a rank that was left out never comes back), or leaves `before` as it is; `accepted.remove` left
out of `_propose`.
"""

import pytest

from common.cluster import membership
from common.cluster.membership import Group, Member
from common.run import in_memory
from tests.membership_simulator import Broken, simulate, simulate_lost_link, simulate_orderly

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


def test_all_but_one_train_while_two_do_not_reach_each_other():
    for seed in range(20):
        simulate_lost_link(seed)


def test_who_was_left_out_founds_no_run_of_its_own():
    """Ranks 1, 2 and 4 went on and are lost: rank 0, cut off before, does not begin anew."""
    simulate(6268)


def everybody_knocks(monkeypatch):
    """Also a newcomer that some of the group do not reach."""
    monkeypatch.setattr(membership, "_out_of_reach", lambda standing, group: tell_nobody())


def tell_nobody():
    return []
    yield


def nobody_is_left_out(monkeypatch):
    monkeypatch.setattr(membership, "_connected", lambda present, guests: present)


@pytest.mark.parametrize("fault", [everybody_knocks, nobody_is_left_out])
def test_a_fault_where_a_link_is_lost_is_found(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(Broken):
        for seed in range(20):
            simulate_lost_link(seed)


def both_halves(monkeypatch):
    monkeypatch.setattr(Group, "is_held_by", lambda self, present: True)


def forgets_what_it_has_accepted(monkeypatch):
    monkeypatch.setattr(membership.Standing, "bound_to", lambda self: [])


def founds_whatever_was_before(monkeypatch):
    monkeypatch.setattr(Group, "is_held_by_ranks_of", lambda self, present: True)
    monkeypatch.setattr(membership, "_last_before", lambda *_: None)


def a_step_is_applied_twice(monkeypatch):
    """A rank that has applied the broken step keeps it, and takes it again with the others."""
    monkeypatch.setattr(in_memory, "furthest", lambda places: (
        places.index(min(places)), [rank for rank, each in enumerate(places) if each[0] < 0]))


def a_survivor_stays_a_step_behind(monkeypatch):
    monkeypatch.setattr(in_memory, "furthest", lambda places: (
        places.index(max(places)), [rank for rank, each in enumerate(places) if each[0] < 0]))


def who_returns_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(in_memory, "furthest", lambda places: (
        places.index(max(places)), [rank for rank, each in enumerate(places)
                                    if 0 <= each[0] < max(places)[0]]))


def the_wrong_rank_succeeds(monkeypatch):
    """The last that is left, who does not know of the others' losses either."""
    def hosts(standing, lost, right=membership._hosts_to_try):
        return list(reversed((yield from right(standing, lost))))
    monkeypatch.setattr(membership, "_hosts_to_try", hosts)


FAULTS = [both_halves, forgets_what_it_has_accepted, founds_whatever_was_before,
          a_step_is_applied_twice, a_survivor_stays_a_step_behind, who_returns_keeps_what_it_has,
          the_wrong_rank_succeeds]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_protocol_is_found(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(Broken):
        for seed in range(SEEDS):
            simulate(seed)
