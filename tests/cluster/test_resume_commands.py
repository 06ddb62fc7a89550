"""The resume command that a rank prints can be run, and starts the ranks that its launcher started.

Mutations that turn this red: print the rank's own command under RUN_COMMAND too; drop keep_command
from a launcher, or its test for an outer one; leave the variables out of it; quote with "$*".
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.box import needs_namespaces, wait_until
from tests.ranks import ROOT

PROGRAM = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from common.cluster.ending import resume_command
with open("ran", "a") as file:
    file.write(json.dumps([sys.argv[0].split("/")[-2], *sys.argv[1:]]) + "\\n")
print("Resume with: " + resume_command(sys.argv, os.environ))
"""
FLAGS = ["--name", "a b", "--text=it's {x} \\ $HOME `", "--resume", "replace", "--last"]
RESUMED = ["--name", "a b", "--text=it's {x} \\ $HOME `", "--last", "--resume", "auto"]
CLUSTER = ["--master-ip", "{master}", "--num-nodes", "{nodes}", "--rank", "{rank}"]
NODE = {"MASTER_IP": "10.0.0.1", "NUM_NODES": "4", "RANK": "3"}


class Launch(NamedTuple):
    """A launcher's words before the flags, its environment, and which parts it starts."""

    words: list[str]
    started: list[str]
    environment: dict[str, str] = {}  # noqa: RUF012


TWICE = ["PartTwo", "PartTwo"]
LAUNCHES = {
    "local": Launch(["scripts/local_cluster.sh", "2", "PartTwo"], TWICE),
    "node": Launch(["scripts/part_two.sh"], ["PartTwo"], NODE),
    "one": Launch(["scripts/part_one.sh"], ["PartOne"]),
    "supervised": Launch(["scripts/supervise.sh", "0", "scripts/run_node.sh", "PartThree",
                          "10.0.0.1", "4", "3"], ["PartThree"]),
    "nested": Launch(["scripts/supervise.sh", "0", "scripts/local_cluster.sh", "2", "PartTwo"],
                     TWICE),
    "quickstart": Launch(["scripts/quickstart.sh"], ["PartOne", "PartTwo", "PartThree", "scripts",
                                                      "scripts"], {"RANKS": "1"}),
    "ssh": Launch(["scripts/ssh_cluster.sh", "hosts.txt", "PartTwo"], TWICE,
                  {"SSH": "./ssh", "PYTHON": sys.executable}),
    "slurm": Launch(["sbatch", "scripts/slurm/part_two.sbatch"], ["PartTwo"],
                    {"PYTHON": sys.executable}),
    "namespaces": Launch(["scripts/namespace_cluster.sh", "-n", "2", sys.executable,
                          "PartTwo/main.py", *CLUSTER], TWICE),
}
ENVIRONMENT = """
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON=%s
use_environment() { :; }
needs_bash() { :; }
""" % sys.executable  # noqa: UP031
STAND_INS = {
    "ssh": 'exec bash -c "${@: -1}"',  # the last word is the command over there
    "sbatch": """
[[ $1 != --nodes=* ]] || { SLURM_JOB_NUM_NODES=${1#*=}; shift; }
export SLURM_JOB_ID=1 SLURM_JOB_NODELIST=here SLURM_SUBMIT_DIR=. SLURM_STEP_ID=0
export SLURM_JOB_NUM_NODES=${SLURM_JOB_NUM_NODES:-4}
exec bash "$@"
""",
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
}


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with the launchers, and with parts that only tell how they were called."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "scripts" / "environment.sh").write_text(ENVIRONMENT)
    for name in ("compare.py", "prove.py"):
        (tmp_path / "scripts" / name).write_text(PROGRAM)
    (tmp_path / "hosts.txt").write_text("here 127.0.0.1\nthere 127.0.0.1\n")
    for part in ("PartOne", "PartTwo", "PartThree", "common"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "main.py").write_text(PROGRAM)
    (tmp_path / "common" / "core").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "common/core/provenance.py", tmp_path / "common/core")
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(command: list[str], project: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, env={
        **os.environ, "PATH": f"{project}:{os.environ['PATH']}", **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def take_calls(project: Path) -> list[list[str]]:
    """How the parts were called since the last time, sorted."""
    calls = [json.loads(line) for line in (project / "ran").read_text().splitlines()]
    (project / "ran").unlink()
    return sorted(calls)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=needs_namespaces if name == "namespaces" else ())
    for name in LAUNCHES])
def test_the_printed_command_starts_the_same_ranks_again(name, project):
    launch = LAUNCHES[name]
    said = run([*launch.words, *FLAGS], project, launch.environment)
    before = take_calls(project)
    assert [call[0] for call in before] == sorted(launch.started)
    printed = set(re.findall("^Resume with: (.*)$", said, re.MULTILINE))
    assert len(printed) == 1, said
    run(["bash", "-c", printed.pop()], project, {})
    after = take_calls(project)
    assert [call[0] for call in after] == [call[0] for call in before]
    for one, other in zip(before, after, strict=True):
        if one[0] != "scripts":  # which proves, and compares what the parts have left
            assert other[-len(RESUMED):] == RESUMED
            assert constant(other[:-len(RESUMED)]) == constant(one[:-len(FLAGS)])


def constant(words: list[str]) -> list[str]:
    """The words that two starts have in common: all but the free port."""
    return [word for before, word in zip(["", *words], words, strict=False)
            if before != "--master-port"]


def test_a_real_run_goes_on_by_the_command_that_it_printed(tmp_path):
    command = ["scripts/local_cluster.sh", "2", "PartTwo", "--workload", "spiral-mlp", "--threads",
               "1", "--sync", "all-reduce", "--epochs", "1000000", "--validation", "0",
               "--checkpoint-every", "5", "--output-dir", str(tmp_path / "my out")]
    folder = tmp_path / "my out" / "PartTwo" / "all-reduce"
    printed = interrupted(command, lambda: any((folder / "checkpoints").glob("*.pt")))
    log = folder / "logs_rank1.txt"
    assert interrupted(["bash", "-c", printed],
                       lambda: "bit-exact" in log.read_text()) == printed


def interrupted(command: list[str], is_time: Callable[[], bool]) -> str:
    """Starts the command in this project, ends it by SIGTERM when it is time, and returns what to
    resume with, as it said."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            wait_until(is_time, seconds=120)
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    printed, = re.findall(r"\bscripts/local_cluster\.sh 2 PartTwo .*$", errors, re.MULTILINE)
    return printed
