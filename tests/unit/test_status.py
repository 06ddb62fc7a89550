"""The status of a run, from its logs: where it is, how fast, and whether it lives.

Mutations that turn this red: all steps instead of the recent ones; the mean for the median; the
first start's events for the last's; `done` without `last` as its limit, in words or in numbers;
0 for a failed run's exit code; no patience for slow steps; no look at the host, the process's
number or the lock of the folder.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from common.reporting.recorded_run import find_runs
from common.reporting.run_state import describe, duration, state_of, tally
from common.run.folder_lock import FolderLock
from tests.facts import says
from tests.ranks import ROOT
from tests.recorded import write_run

FORK = multiprocessing.get_context("fork")


def append(folder, **event) -> None:
    with (folder / "metrics_rank0.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def state(folder, after: float = 3.0) -> tuple[str, int]:
    """The description of the run, so many seconds after the last line was written."""
    run, = find_runs([folder])
    return describe(run, (folder / "metrics_rank0.jsonl").stat().st_mtime + after)


def test_a_running_run(tmp_path):
    folder = write_run(tmp_path / "PartOne", steps=30, ended=False, epochs=20)
    text, code = state(folder)
    assert code == 0 and says(text, "running", "3 s")
    assert says(text, "epoch 15", 20, "iteration 30", 40, "75 %", "10 s")
    assert says(text, "100 samples/s", "backward", "20 iterations")


def test_an_iteration_limit_ends_the_run_earlier(tmp_path):
    folder = write_run(tmp_path / "PartOne", steps=3, ended=False, max_iterations=3)
    text, _ = state(folder)
    assert says(text, "iteration 3", "100 %", "0 s")
    assert says(text, "100 samples/s")  # the first step, ten times as long, counts as one of three


@pytest.mark.parametrize("fewer", [{"epochs": 1}, {"max_iterations": 2}])
def test_a_run_that_was_resumed_with_fewer_iterations_is_not_past_its_end(tmp_path, fewer):
    folder = write_run(tmp_path / "PartOne", steps=4, **fewer)
    text, code = state(folder)
    assert code == 0 and says(text, "finished", "epoch 2", "iteration 4", "resumed with 2")
    assert not says(text, "epoch 2 of 1") and not says(text, "200 %")
    assert state_of(*find_runs([folder]), time.time()).percent == "100 %"


def test_a_finished_run(tmp_path):
    text, code = state(write_run(tmp_path / "PartOne"), after=1e6)
    assert code == 0 and says(text, "finished", "65.00 %")


def test_a_failed_run_says_why_until_it_is_resumed(tmp_path):
    folder = write_run(tmp_path / "PartOne", ended=False, epochs=3)
    start = json.loads((folder / "metrics_rank0.jsonl").read_text().splitlines()[0])
    append(folder, event="failed", why="rank 2 stopped answering", exit_code=75)
    text, code = state(folder)
    assert code == 75 and says(text, "failed", 75, "rank 2 stopped answering")
    append(folder, **start)
    assert state(folder)[1] == 0 and says(state(folder)[0], "running")


def test_runs_are_counted_by_their_condition(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name)
    append(write_run(tmp_path / "c", ended=False), event="failed", why="no", exit_code=4)
    silent, running = (write_run(tmp_path / name, ended=False, epochs=3) for name in "de")
    os.utime(silent / "metrics_rank0.jsonl", (time.time() - 9e4,) * 2)
    states = [state_of(run, time.time()) for run in find_runs([tmp_path])]
    assert says(tally(states), "2 finished", "1 failed", "1 silent", "1 running")
    assert tally(states[:2]) == "finished"


@pytest.mark.parametrize("own, after, code", [(0.1, 59, 0), (0.1, 120, 75), (30, 120, 0),
                                              (30, 400, 75)])
def test_silence_is_judged_by_how_long_a_step_takes(tmp_path, own, after, code):
    folder = write_run(tmp_path / "PartOne", own=own, ended=False, epochs=3)
    text, said = state(folder, after)
    assert said == code and says(text, "silent") == (code == 75)


def hold(folder, ready) -> None:
    FolderLock(folder, 0, "").take()
    ready.set()
    signal.pause()


def test_a_killed_run_of_this_machine_is_known_at_once(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "PartOne", ended=False, epochs=3)
    ready = FORK.Event()
    process = FORK.Process(target=hold, args=(folder, ready), daemon=True)
    process.start()
    assert ready.wait(30) and state(folder)[1] == 0
    lock = folder / ".lock_rank0"
    noted, here = lock.read_text().split()
    lock.write_text(f"{2**22 + 1} {here}")  # as in a container, which counts its own processes
    assert state(folder)[1] == 0 and "running" in state(folder)[0]
    lock.write_text(f"{noted} {here}")
    process.kill()
    process.join()
    assert state(folder)[1] == 75 and ": killed" in state(folder)[0]
    assert state_of(*find_runs([folder]), time.time()).condition == "killed"
    lock.write_text(f"{os.getpid()} {here}")  # it is about to say why it ends
    assert state(folder)[1] == 0
    lock.write_text(f"{noted} elsewhere")
    assert state(folder)[1] == 0


def test_the_command(tmp_path):
    folder = write_run(tmp_path / "PartOne", ended=False, epochs=3)
    os.utime(folder / "metrics_rank0.jsonl", (time.time() - 9e4,) * 2)
    for where, code, words in ((tmp_path, 75, "25 h 0 min"), ("nowhere", 4, "nowhere")):
        done = subprocess.run([sys.executable, "scripts/status.py", where], cwd=ROOT,
                              capture_output=True, text=True)
        assert done.returncode == code and says(done.stdout + done.stderr, words)


@pytest.mark.parametrize("seconds, words", [(-1, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
                                            (725, "12 min 5 s"), (7800, "2 h 10 min")])
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words
