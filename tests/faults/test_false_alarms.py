"""A run that nothing disturbs is left alone: when it is slow, paused, or on a busy machine.

Mutations that turn this red: return from Heartbeats._excuse_absence at once (a pause of all ranks
is taken for a loss); one patience for all in Heartbeats._limit (slow data and a slow first step
are).
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from studies.proof.ranks import CONTEXT
from tests.faults.disturbed import joined, plant_phases, running, wait_for
from tests.ranks import error_lines
from tests.runs import Case, end_of, same_bits


def test_a_pause_of_all_ranks_is_no_loss(tmp_path, undisturbed):
    """A terminal that stops and continues a job, or a suspended machine, pauses all ranks so."""
    case = Case("all-reduce", 3, "memory", 3, 0)
    with running(case, tmp_path, pause=0.15) as programs:
        wait_for(tmp_path, "training", 12)  # all have heard of each other
        for each in programs:
            os.kill(each.process.pid, signal.SIGSTOP)
        time.sleep(9)
        for each in programs:  # the first has time to judge the other ranks, and must not
            os.kill(each.process.pid, signal.SIGCONT)
            time.sleep(1)
        codes, _ = joined(programs, 60)
    assert codes == [0, 0, 0], [each.output() for each in programs]
    assert same_bits(end_of(case, tmp_path), undisturbed(case))


def plant_slow_rank(folder: Path) -> None:
    """Slow data, and a first step that takes longer than the patience for later ones."""
    from common import setup
    from common.run import run

    plant_phases(folder)
    load, begin = setup.load_datasets, run.Run.iterations

    def slowly(*arguments):
        time.sleep(5)
        return load(*arguments)

    def slow_first(self):
        for count, iteration in enumerate(begin(self)):
            time.sleep(5 if count == 0 and self.position.step == 0 else 0)
            yield iteration
    setup.load_datasets, run.Run.iterations = slowly, slow_first


def test_a_rank_that_is_merely_slow_is_no_loss(tmp_path):
    case = Case("all-reduce", 2, "memory", 3, 0)
    plants = {1: partial(plant_slow_rank, tmp_path)}
    with running(case, tmp_path, plants=plants, more=("--timeout", "4")) as programs:
        codes, _ = joined(programs, 60)
    assert codes == [0, 0], [each.output() for each in programs]


KINDS = [(run, size) for size in (2, 4, 3) for run in ("all-reduce", "PartThree", "gather-scatter")]
KINDS.insert(4, ("PartOne", 1))


def spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """So many processes that want a core each, and get what the ranks leave them."""
    spinning = [CONTEXT.Process(target=spin, daemon=True) for _ in range(processes)]
    for each in spinning:
        each.start()
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.join()


def check_undisturbed(number: int, pause: float, folder: Path, undisturbed) -> None:
    """Every kind of run in turn, every third one on a machine with twice as much work as cores."""
    case = Case(*KINDS[number % 10], ("memory", "workers")[number // 10 % 2], 3, 0)
    load = 2 * len(os.sched_getaffinity(0)) if number % 3 == 2 else 0
    with busy_machine(load), running(case, folder, pause=pause) as programs:
        codes, _ = joined(programs, 100)
    assert codes == [0] * case.world_size, [each.output() for each in programs]
    assert [error_lines(each.output()) for each in programs] == [[]] * case.world_size
    assert same_bits(end_of(case, folder), undisturbed(case))


@pytest.mark.parametrize("number", range(3))
def test_no_false_alarm(number, tmp_path, undisturbed):
    check_undisturbed(number, 0.1, tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_no_false_alarm_in_fifty_runs(number, tmp_path, undisturbed):
    check_undisturbed(number, 0.2, tmp_path, undisturbed)
