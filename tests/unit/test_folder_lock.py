"""One run holds a folder; a lock ends with its process, however that ends.

Mutations that turn this red: take no lock; flock in the place of lockf (a forked worker keeps it);
raise where a file system has no locks; leave out the second look at the logs (`refuse_other_run`
after `hold_folder`), or the other ranks' locks.
"""

import errno
import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from common.core.failures import UsageError
from common.run import folder_lock
from common.run.folder_lock import FolderLock
from tests.facts import says
from tests.ranks import cluster, error_lines, program, run_programs
from tests.workload import SMALL, plant

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 0.2)


def hold(folder: Path, results, barrier=None, is_forking: bool = False) -> None:
    """Takes rank 0's lock, says whether it did, and keeps it until it is killed."""
    if barrier is not None:
        barrier.wait()
    try:
        FolderLock(folder, 0, "").take()
    except UsageError as error:
        return results.put(str(error))
    if is_forking and os.fork() == 0:  # a loader's worker, which outlives its rank by a moment
        signal.pause()
    results.put("taken")
    signal.pause()


def test_of_six_processes_at_once_one_gets_the_folder(tmp_path):
    results, barrier = FORK.Queue(), FORK.Barrier(6)
    processes = [FORK.Process(target=hold, args=(tmp_path / "run", results, barrier))
                 for _ in range(6)]
    for each in processes:
        each.start()
    said = sorted(results.get(timeout=30) for _ in processes)
    holder, = (each.pid for each in processes if each.is_alive() and _is_pausing(each))
    assert said.count("taken") == 1
    assert all(says(each, f"process {holder}", os.uname().nodename, tmp_path / "run")
               for each in said if each != "taken")
    for each in processes:
        each.kill()
        each.join()


def _is_pausing(process) -> bool:
    process.join(0.5)
    return process.is_alive()


@pytest.mark.parametrize("is_forking", [False, True])
def test_a_killed_run_leaves_no_lock(is_forking, tmp_path):
    results = FORK.Queue()
    process = FORK.Process(target=hold, args=(tmp_path, results, None, is_forking))
    process.start()
    assert results.get(timeout=30) == "taken"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    with pytest.raises(UsageError) as raised, FolderLock(tmp_path, 0, "") as lock:
        lock.take()
    assert says(raised.value, f"process {process.pid}", tmp_path)
    process.kill()
    process.join()
    with FolderLock(tmp_path, 0, "") as lock:
        assert lock.take() == lock.take() == ""
    for child in map(int, children):
        os.kill(child, signal.SIGKILL)


def test_who_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 30.0)
    results = FORK.Queue()
    process = FORK.Process(target=hold, args=(tmp_path, results))
    process.start()
    results.get(timeout=30)
    monkeypatch.setattr(time, "sleep", lambda seconds: process.kill())
    with FolderLock(tmp_path, 0, "") as lock:
        assert lock.take() == ""
    process.join()


def test_where_there_are_no_locks_a_run_goes_on_with_a_warning(tmp_path, monkeypatch):
    def no_locks(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with FolderLock(tmp_path, 0, "rank 0 on a: ") as lock:
        assert says(lock.take(), "warning", "rank 0 on a", tmp_path, os.strerror(errno.ENOLCK))


def test_what_stands_in_a_lock_is_not_believed(tmp_path):
    results = FORK.Queue()
    process = FORK.Process(target=hold, args=(tmp_path, results))
    process.start()
    results.get(timeout=30)
    (tmp_path / ".lock_rank0").write_text("\x1b]0;title\x07 1 2")
    with pytest.raises(UsageError) as raised:
        FolderLock(tmp_path, 0, "").take()
    assert says(raised.value, tmp_path) and "title" not in str(raised.value)
    process.kill()
    process.join()


def hasty() -> None:
    """The small workload, and no patience for a lock."""
    plant()
    folder_lock.WAIT_SECONDS = 0.2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_run_is_refused_on_all_ranks_and_touches_nothing(rank, tmp_path):
    """Also where the first holds the folder of one rank's own disk only."""
    folders = [tmp_path / str(each) for each in range(2)]
    flags = [*SMALL, "--sync", "all-reduce", "--resume", "auto"]
    own = {each: ["--output-dir", str(folders[each])] for each in range(2)}
    run = folders[rank] / "PartTwo" / "all-reduce"
    with FolderLock(run, rank, "") as lock:
        lock.take()
        (run / f"logs_rank{rank}.txt").write_text("the first run's\n")
        before = sorted(run.rglob("*"))
        outcomes = run_programs(cluster("PartTwo", 2, flags, tmp_path, own,
                                        dict.fromkeys(range(2), hasty)))
        assert sorted(run.rglob("*")) == before
    for outcome in outcomes:
        assert outcome.code == 2
        sentence, = error_lines(outcome.output)
        assert says(sentence, f"process {os.getpid()}", run)
    assert (run / f"logs_rank{rank}.txt").read_text() == "the first run's\n"


def slow_to_begin() -> None:
    """Does as `hasty`; after its wait for the lock the folder holds a run that came and went."""
    plant()
    take = FolderLock.take

    def take_late(self: FolderLock) -> str:
        said = take(self)
        (self._folder / "logs_rank0.txt").touch()
        return said
    FolderLock.take = take_late


def test_a_run_that_waited_is_refused_where_another_has_been(tmp_path):
    flags = [*SMALL, "--output-dir", str(tmp_path)]
    outcome, = run_programs([program("PartOne", flags, tmp_path, "one", before=slow_to_begin)])
    sentence, = error_lines(outcome.output)
    assert outcome.code == 2 and says(sentence, tmp_path / "PartOne", "--resume replace")
