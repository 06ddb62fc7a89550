"""A run that takes long says what it is doing, and how far it is; a busy one stays quiet.

Mutations that turn this red: leave out `counted`'s text; tell on other ranks too; look at `begun`
instead of what was said; tell steps after the first; leave tqdm its own lock.
"""

import threading
import time

import pytest
from tqdm import tqdm

from common.core.console import console, counted, tell_long_waits
from common.core.progress import FINISHED, Progress
from common.core.world import World
from tests.facts import says


@pytest.fixture
def progress(monkeypatch):
    """Where a run is, in whose telling a tenth of a second is a long wait."""
    monkeypatch.setattr("common.core.console.SILENCE_SECONDS", 0.1)
    monkeypatch.setattr("common.core.console.LOOK_SECONDS", 0.01)
    progress = Progress()
    yield progress
    progress.phase = FINISHED
    for thread in threading.enumerate():
        if thread.name == "long waits":
            thread.join(timeout=10)
            assert not thread.is_alive()


def wait_for(capsys, *facts: object) -> str:
    """Returns the output up to the line that says `facts`."""
    said = ""
    for _ in range(1000):
        said += capsys.readouterr().out
        if any(says(line, *facts) for line in said.splitlines()):
            return said
        threading.Event().wait(0.01)
    raise AssertionError(f"{facts} were not said, but {said!r}")


def test_a_long_wait_says_what_it_is_and_how_far(capsys, progress):
    tell_long_waits(World(), progress)
    wait_for(capsys, "torch")
    progress.phase = "loading data"
    wait_for(capsys, "loading data")
    files = counted(range(3000), "images decoded")
    next(files), next(files)
    wait_for(capsys, "loading data", 1, "3,000", "images decoded")
    files.close()
    progress.epoch, progress.phase = 1, "forward"
    said = wait_for(capsys, "epoch 1", "iteration 0", "forward")
    assert "images decoded" not in said.split("forward")[-1]
    progress.has_stepped, progress.phase = True, "evaluation"
    wait_for(capsys, "evaluation")


def test_the_lock_of_the_terminal_is_of_this_process_alone():
    """One between processes is left behind by a rank that is killed, with a warning of Python's."""
    console(World())("a line")
    assert isinstance(tqdm.get_lock(), type(threading.RLock()))


def test_a_phase_that_lasts_tells_its_seconds(capsys, progress):
    tell_long_waits(World(), progress)
    wait_for(capsys, "torch", "1 s")


def silent(capsys) -> bool:
    capsys.readouterr()
    time.sleep(0.5)
    return not capsys.readouterr().out


def test_steps_after_the_first_have_lines_of_their_own(capsys, progress):
    tell_long_waits(World(), progress)
    progress.has_stepped, progress.epoch, progress.phase = True, 1, "backward"
    assert silent(capsys)


def test_only_the_leader_speaks(capsys, progress):
    tell_long_waits(World(rank=1, size=2), progress)
    assert silent(capsys)


def test_what_was_just_said_counts(capsys, progress):
    say = console(World())
    say("something")
    tell_long_waits(World(), progress)
    for _ in range(50):
        say("something")
        time.sleep(0.01)
    assert set(capsys.readouterr().out.split()) == {"something"}


def test_phases_that_follow_one_another_are_no_excuse_for_silence(capsys, progress):
    tell_long_waits(World(), progress)
    wait_for(capsys, "torch")
    for number in range(100):
        progress.phase = f"phase {number}"
        time.sleep(0.01)
    assert says(capsys.readouterr().out, "phase")
