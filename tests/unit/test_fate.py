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
from tests.facts import says


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("code, fact", [
    (137, "SIGKILL"), (152, "SIGXCPU"), (1, 1), (255, 255)])
def test_what_the_launcher_has_noted_is_told(code, fact, tmp_path, monkeypatch, sleeper):
    monkeypatch.setenv("EXIT_CODES", str(tmp_path))
    assert fate_of(sleeper.pid) == ""
    (tmp_path / str(sleeper.pid)).write_text(f"{code}\n")
    assert says(fate_of(sleeper.pid), fact)


def test_without_a_note_the_kernel_is_asked(monkeypatch, sleeper):
    monkeypatch.delenv("EXIT_CODES", raising=False)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert says(fate_of(sleeper.pid), "SIGSTOP")
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    ended = fate_of(sleeper.pid)
    assert says(ended, "process") and "SIG" not in ended
    sleeper.wait()
    assert fate_of(sleeper.pid) == ended


def test_of_another_machine_nothing_is_known():
    here = RankInfo(0, "node0", 1, "10.0.0.1", "eth0", machine="a")
    gone = RankInfo(1, "node0", 2**22 + 1, "10.0.0.1", "eth0", machine="a")
    assert says(fate_of_rank(gone, here), "process")
    assert fate_of_rank(replace(gone, machine="b"), here) == ""
    assert fate_of_rank(replace(gone, host="another container"), here) == ""
