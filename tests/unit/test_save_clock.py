"""Saving by the clock: the leader has the clock, and all save after the same step.

tests/multiprocess/test_parts.py saves so in the literal mains.

Mutations that turn this red: post the key of this step instead of the next that all look at; let
every rank decide; do not start anew in `saved`, or do not call it in Checkpoints.save; leave the
run's name out of the key.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from common.cluster.node import Node
from common.core.world import World
from common.run import save_clock
from common.run.run_log import RunLog
from common.run.save_clock import LOOK_EVERY, SaveClock
from common.settings.settings import Settings
from tests.small import small_model, small_run


class Time:
    """Stands still until it is told to go on; `monotonic` as in the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def watch():
    """Replaces the module's clock."""
    plain, save_clock.time = save_clock.time, Time()
    yield save_clock.time
    save_clock.time = plain


def clocks(size: int, minutes: float, store=None, name: str = "a") -> list[SaveClock]:
    store = store or HashStore()
    return [SaveClock(name, minutes, Node(World(rank, size), torch.device("cpu"), 1, store=store))
            for rank in range(size)]


@given(st.integers(1, 4), st.floats(0.05, 3), st.lists(st.floats(0, 30), min_size=25, max_size=60))
def test_all_ranks_save_after_the_same_steps_and_often_enough(watch, size, minutes, seconds):
    """The leader is asked first: nobody can end a step before it has entered that step."""
    ranks, last = clocks(size, minutes), watch.now
    for step, duration in enumerate(seconds, start=1):
        watch.now += duration
        answers = {each.is_due(step) for each in ranks}
        assert len(answers) == 1
        if answers == {True}:
            assert watch.now - last > 60 * minutes and step % LOOK_EVERY == 0
            for each in ranks:
                each.saved()
            last = watch.now
        longest = 2 * LOOK_EVERY * max(seconds)  # one round until all look, one to decide
        assert watch.now - last <= 60 * minutes + longest


def test_a_leader_who_is_a_step_ahead_says_the_same(watch):
    """The others may still have this step's end before them when the leader ends the next one."""
    leader, other = clocks(2, 1)
    watch.now += 61
    assert not leader.is_due(9)
    assert leader.is_due(10)
    assert other.is_due(10)
    leader.saved()
    assert not leader.is_due(11) and not other.is_due(20)


def test_zero_is_never_and_alone_needs_no_store(watch):
    never, alone = clocks(1, 0)[0], SaveClock("a", 1, Node(World(), torch.device("cpu"), 1))
    watch.now += 1e9
    assert not any(never.is_due(step) for step in range(1, 40))
    assert [step for step in range(1, 25) if alone.is_due(step)] == [10, 20]
    assert not SaveClock().is_due(10)


def test_every_checkpoint_starts_the_minutes_anew(watch, tmp_path):
    node, clock = Node(World(), torch.device("cpu"), 1), SaveClock()
    settings = Settings(workload="small", output_dir=tmp_path, batch_size=10)
    model = small_model(torch.float32)
    with RunLog(tmp_path / "log", tmp_path / "jsonl", node.world) as log:
        run = small_run(tmp_path, settings, node, log, model, iterations=9, clock=clock)
        watch.now += 7
        run.save()
    assert clock._since == watch.now


def test_another_run_on_the_same_store_is_not_meant(watch):
    store = HashStore()
    first, second = clocks(2, 1, store, "a"), clocks(2, 1, store, "b")
    watch.now += 61
    assert not first[0].is_due(1)
    assert first[1].is_due(10) and not second[1].is_due(10)
