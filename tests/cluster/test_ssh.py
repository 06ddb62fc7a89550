"""The ssh launcher against a real sshd: starts, follows, stops, collects; leaves nothing running.

Mutations that turn this red: drop check_node; drop signal_all from stop_all; let `code_of` say 0
for a rank that vanished; drop collect; drop the trap for TERM; collect the folder of logs too; drop
ControlMaster; drop the last line of the rank that failed; hash *.py alone; take any word for an
address.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.box import wait_until
from tests.cluster.ssh_server import needs_sshd, ssh_server
from tests.facts import says
from tests.ranks import ROOT, free_port

pytestmark = needs_sshd
FLAGS = ["--workload", "digits-vgg11", "--batch-size", "8", "--max-iterations", "1", "--epochs",
         "1", "--threads", "1"]


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    with ssh_server(tmp_path_factory.mktemp("sshd")) as command:
        yield command


def launch(ssh, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    """The launcher for two ranks on this machine; LOG_DIR is folder/logs."""
    (folder / "hosts.txt").write_text("# two ranks\n127.0.0.1\nlocalhost 127.0.0.1")
    return subprocess.Popen(
        [ROOT / "scripts" / "ssh_cluster.sh", folder / "hosts.txt", *arguments],
        env={**os.environ, "SSH": ssh, "PYTHON": sys.executable, "LOG_DIR": str(folder / "logs"),
             **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def program_in(folder: Path, text: str) -> Path:
    """A small copy of the project whose PartTwo is `text`: rank is sys.argv[6]."""
    for name in ("common", "PartOne", "PartTwo", "PartThree", "scripts"):
        (folder / name).mkdir(parents=True)
    (folder / "common" / "core").mkdir()
    shutil.copy(ROOT / "common/core/provenance.py", folder / "common/core")
    (folder / "PartTwo" / "main.py").write_text(f"import os, sys, time\nrank = sys.argv[6]\n{text}")
    for script in ("ssh_cluster.sh", "run_command.sh", "exit_code.sh"):
        (folder / "scripts" / script).symlink_to(ROOT / "scripts" / script)
    return folder


def launch_copy(ssh, copy: Path, folder: Path, **environment: str) -> subprocess.Popen:
    """Runs the launcher of a project folder of its own."""
    (folder / "hosts.txt").write_text("127.0.0.1\nlocalhost 127.0.0.1")
    return subprocess.Popen(
        [copy / "scripts" / "ssh_cluster.sh", folder / "hosts.txt", "PartTwo"],
        env={**os.environ, "SSH": ssh, "PYTHON": sys.executable, "LOG_DIR": str(folder / "logs"),
             "GRACE": "2", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_code_is_copied_a_run_is_followed_and_its_results_come_back(ssh, tmp_path):
    launcher = launch(ssh, tmp_path, "PartTwo", *FLAGS, "--master-port", str(free_port()),
                      "--sync", "all-reduce", COPY="1", REMOTE_DIR=str(tmp_path / "there"))
    said, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, said + errors
    assert "2 ranks" in said and said == (tmp_path / "logs" / "node0.out").read_text()
    for rank in range(2):
        results = tmp_path / "logs" / f"node{rank}" / "PartTwo" / "all-reduce"
        assert (results / f"metrics_rank{rank}.jsonl").exists()
        assert not (results / "checkpoints").exists()
    assert (tmp_path / "there" / "outputs" / "PartTwo" / "all-reduce" / "checkpoints").exists()
    assert not list((tmp_path / "there" / "outputs").glob(".ssh-*"))


def test_the_folder_of_logs_may_lie_among_the_results(ssh, tmp_path):
    copy = program_in(tmp_path / "copy", "os.makedirs('outputs/PartTwo', exist_ok=True)\n"
                      "open(f'outputs/PartTwo/rank{rank}', 'w').write('done')\ntime.sleep(0.5)\n")
    logs, before = copy / "outputs/eight", connections(ssh)
    launcher = launch_copy(ssh, copy, tmp_path, LOG_DIR=str(logs))
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 0 and says(errors, logs)
    for rank in range(2):
        assert (logs / f"node{rank}/PartTwo/rank0").read_text() == "done"
        assert [path.name for path in (logs / f"node{rank}").iterdir()] == ["PartTwo"]
    assert connections(ssh) - before <= 2  # one a node


def connections(ssh: str) -> int:
    """The number of logins so far."""
    return (Path(ssh.split()[-1]).parent / "sshd.log").read_text().count("Accepted publickey")


def test_a_node_without_an_interpreter_is_named(ssh, tmp_path):
    launcher = launch(ssh, tmp_path, "PartTwo", PYTHON="no/python")
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 2
    assert says(errors, "rank 0", f"127.0.0.1:{ROOT}", "no/python")


def test_other_code_on_a_node_is_refused(ssh, tmp_path):
    (tmp_path / "there" / "common").mkdir(parents=True)
    launcher = launch(ssh, tmp_path, "PartTwo", REMOTE_DIR=str(tmp_path / "there"))
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    assert says(errors, "rank 0", f"127.0.0.1:{tmp_path / 'there'}", "code")


def test_one_byte_more_in_a_source_that_is_not_python_is_refused(ssh, tmp_path):
    for name in ("common", "PartOne", "PartTwo", "PartThree", "scripts", "studies", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / "there" / name)
    with (tmp_path / "there/common/arithmetic/cpp/products.cpp").open("a") as file:
        file.write(" ")
    launcher = launch(ssh, tmp_path, "PartTwo", REMOTE_DIR=str(tmp_path / "there"))
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 3 and says(errors, "code") and "(none)" not in errors


def test_a_node_that_does_not_answer(ssh, tmp_path):
    launcher = launch(f"{ssh} -p {free_port()}", tmp_path, "PartTwo")
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75 and says(errors, "127.0.0.1", "ssh")


def test_all_are_stopped_when_one_fails(ssh, tmp_path):
    copy = program_in(tmp_path / "copy", f"open({str(tmp_path)!r} + '/pid' + rank, 'w')"
                      ".write(str(os.getpid()))\nprint('hello', rank, flush=True)\n"
                      "time.sleep(1)\nsys.exit(5) if rank == '1' else time.sleep(1000)\n")
    launcher = launch_copy(ssh, copy, tmp_path)
    said, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 5 and said == "hello 0\n"
    assert any(says(line, "rank 1", "localhost", 5) for line in errors.splitlines())
    assert "\nhello 1\n" in errors
    assert (tmp_path / "logs" / "node1.out").read_text() == "hello 1\n"
    assert not any(is_running(tmp_path / f"pid{rank}") for rank in range(2))


def test_a_signal_to_the_launcher_stops_all(ssh, tmp_path):
    copy = program_in(tmp_path / "copy", f"open({str(tmp_path)!r} + '/pid' + rank, 'w')"
                      ".write(str(os.getpid()))\nimport signal\nsignal.signal(signal.SIGTERM, "
                      "lambda *_: sys.exit('saved'))\nprint('set', flush=True)\n"
                      "time.sleep(1000)\n")
    launcher = launch_copy(ssh, copy, tmp_path)
    wait_until(lambda: all((tmp_path / f"pid{rank}").exists() for rank in range(2)))
    time.sleep(1)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 143
    for rank in range(2):  # each was asked, not killed
        assert (tmp_path / "logs" / f"node{rank}.out").read_text() == "set\nsaved\n"
    assert not any(is_running(tmp_path / f"pid{rank}") for rank in range(2))


def test_a_rank_that_vanishes_without_an_exit_code(ssh, tmp_path):
    copy = program_in(tmp_path / "copy", "time.sleep(0.5)\nif rank == '1':\n"
                      "    os.killpg(0, 9)\n")
    launcher = launch_copy(ssh, copy, tmp_path)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert any(says(line, "rank 1", "localhost", 75) for line in errors.splitlines())


def is_running(path: Path) -> bool:
    return Path(f"/proc/{path.read_text()}").exists()


@pytest.mark.parametrize("hosts, part, fact", [
    ("-oProxyCommand=touch${IFS}pwned", "PartTwo", "-oProxyCommand=touch"),
    ("me@-oProxyCommand=x", "PartTwo", "-oProxyCommand=x"), ("a --resume", "PartTwo", "--resume"),
    ("", "PartTwo", "hosts.txt"), ("a", "PartSeven", "PartSeven")])
def test_mistakes_are_reported_in_a_sentence(tmp_path, hosts, part, fact):
    (tmp_path / "hosts.txt").write_text(hosts)
    done = subprocess.run([ROOT / "scripts" / "ssh_cluster.sh", tmp_path / "hosts.txt", part],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and fact in done.stderr
    assert not (tmp_path / "pwned").exists()
