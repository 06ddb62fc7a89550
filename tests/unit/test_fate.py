"""The sentence on a lost rank's process, if it was on the same machine.

Mutations that turn this red: look on another machine too; take a process that runs for one that has
ended; leave out what the launcher has noted.
"""

import os
import signal
import subprocess
from dataclasses import replace

import pytest

from common.cluster.fate import fate_of, fate_of_rank
from common.cluster.rank_info import RankInfo


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("code, words", [
    (137, "was ended by SIGKILL"), (152, "was ended by SIGXCPU"), (1, "ended with exit code 1"),
    (255, "ended with exit code 255")])
def test_what_the_launcher_has_noted_is_told(code, words, tmp_path, monkeypatch, sleeper):
    monkeypatch.setenv("EXIT_CODES", str(tmp_path))
    assert fate_of(sleeper.pid) == ""
    (tmp_path / str(sleeper.pid)).write_text(f"{code}\n")
    assert fate_of(sleeper.pid) == f"; its process {words}"


def test_without_a_note_the_kernel_is_asked(monkeypatch, sleeper):
    monkeypatch.delenv("EXIT_CODES", raising=False)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert fate_of(sleeper.pid) == "; its process is stopped (SIGSTOP)"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert fate_of(sleeper.pid) == "; its process has ended"
    sleeper.wait()
    assert fate_of(sleeper.pid) == "; its process has ended"


def test_of_another_machine_nothing_is_known():
    here = RankInfo(0, "node0", 1, "10.0.0.1", "eth0", machine="a")
    gone = RankInfo(1, "node0", 2**22 + 1, "10.0.0.1", "eth0", machine="a")
    assert fate_of_rank(gone, here) == "; its process has ended"
    assert fate_of_rank(replace(gone, machine="b"), here) == ""
    assert fate_of_rank(replace(gone, host="another container"), here) == ""
