"""torchrun and the local cluster start the parts as they are, and end with the right exit code.

Mutations that turn this red: ignore TORCHELASTIC_USE_AGENT_STORE in _from_torchrun (the port is
taken); let local_cluster.sh keep the last status instead of the first; drop its trap for TERM or
HUP, or `rm -rf` in the one for EXIT; count its ranks from the wrong end in tell_signal; measure no
speeds in announce; drop OpenMPI's row from MPI_VARIABLES.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.box import wait_until
from tests.facts import says
from tests.ranks import ROOT, cluster, free_port, run_programs

LOCAL = ROOT / "scripts" / "local_cluster.sh"
FLAGS = ["--workload", "digits-vgg11", "--batch-size", "8", "--max-iterations", "1", "--epochs",
         "1", "--threads", "1"]


def test_torchrun_with_two_processes_a_node(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
         str(free_port()), "PartThree/main.py", *FLAGS, "--output-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "2 ranks", "torchrun")
    assert (tmp_path / "PartThree" / "metrics_rank1.jsonl").exists()


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun (openmpi-bin) is missing")
def test_mpirun_starts_the_ranks_of_one_run(tmp_path):
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable,
         "PartTwo/main.py", *FLAGS, "--sync", "all-reduce", "--master-port", str(free_port()),
         "--output-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "2 ranks", "mpirun")
    assert (tmp_path / "PartTwo/all-reduce/metrics_rank1.jsonl").exists()


def test_a_dry_run_tells_how_fast_the_ranks_all_reduce(tmp_path):
    outcomes = run_programs(cluster("PartThree", 2, [*FLAGS, "--dry-run", "--output-dir",
                                                     str(tmp_path / "out")], tmp_path))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert "all-reduce" in outcomes[0].output and "36.92 MB" in outcomes[0].output


def local(program: str, folder: Path, **environment: str) -> subprocess.Popen:
    """Three ranks of a small program; rank is sys.argv[6]."""
    path = folder / "program.py"
    path.write_text(f"import os, sys, time\nrank, folder = sys.argv[6], {str(folder)!r}\n"
                    f"open(folder + '/pid' + rank, 'w').write(str(os.getpid()))\n{program}")
    return subprocess.Popen([LOCAL, "3", os.path.relpath(path, ROOT)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "LOG_DIR": str(folder), **environment})


@pytest.mark.parametrize("code", [0, 3])
def test_a_temporary_folder_stays_where_a_rank_has_failed_and_is_named(code, tmp_path):
    process = local(f"sys.exit({code})", tmp_path, LOG_DIR="", TMPDIR=str(tmp_path))
    _, errors = process.communicate(timeout=60)
    left = [str(path) for path in tmp_path.iterdir() if path.is_dir()]
    assert process.returncode == code and len(left) == bool(code)
    assert says(errors, *left)


def test_the_local_cluster_ends_with_the_first_failure(tmp_path):
    process = local("print('rank', rank)\ntime.sleep(1 - int(rank) / 2)\nsys.exit(int(rank) + 3)",
                    tmp_path)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 5 and said == "rank 0\n" and says(errors, 5)
    assert (tmp_path / "rank1.out").read_text() == "rank 1\n"


def test_the_local_cluster_says_which_signal_ended_a_rank(tmp_path):
    """A limit such as ulimit -t ends a process before it can say a word."""
    process = local("os.kill(os.getpid(), 9) if rank == '1' else time.sleep(1)", tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 137
    assert re.findall(r"\brank (\d)\b.*\bSIGKILL\b", errors) == ["1"]
    pid = (tmp_path / "pid1").read_text()  # by which the other ranks find it
    assert (tmp_path / "exit_codes" / pid).read_text() == "137\n"


def test_a_signal_reaches_every_local_rank_and_none_is_left(tmp_path):
    process = local("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                    "print('ready', flush=True)\ntime.sleep(1000)", tmp_path, GRACE="1")
    wait_until(lambda: all((tmp_path / f"rank{rank}.out").exists()
                           and (tmp_path / f"rank{rank}.out").read_text() for rank in (1, 2)))
    wait_until(lambda: (tmp_path / "pid0").exists() and (tmp_path / "pid0").read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    for rank in range(3):
        assert not Path(f"/proc/{(tmp_path / f'pid{rank}').read_text()}").exists()


def test_a_lost_terminal_lets_the_local_ranks_stop_by_themselves(tmp_path):
    process = local("import signal\ndef leave(*_):\n    open(folder + '/left' + rank, 'w')\n"
                    "    sys.exit(0)\nsignal.signal(signal.SIGHUP, leave)\n"
                    "open(folder + '/ready' + rank, 'w')\ntime.sleep(1000)", tmp_path)
    wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(3)))
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert all((tmp_path / f"left{rank}").exists() for rank in range(3))
