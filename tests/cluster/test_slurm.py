"""The batch files in a real SLURM of two nodes: a job runs, is interrupted, and goes on by itself.

Mutations that turn this red: drop `scontrol requeue` or `--resume auto` from run_part.sh; drop 143
from its cases; let _from_slurm take the batch step's rank for the world (no SLURM_STEP_ID).
"""

import subprocess
import sys

import pytest

from common.core.events import read_events
from tests.cluster.box import wait_until
from tests.cluster.slurm_server import ask, needs_slurm, slurm, wait_for_job
from tests.facts import says
from tests.faults.compared_runs import RESUMED
from tests.ranks import ROOT

pytestmark = needs_slurm
FLAGS = ["--workload", "digits-vgg11", "--batch-size", "8", "--threads", "1", "--epochs", "1"]


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield {**environment, "PYTHON": sys.executable}


def submit(queue, folder, file: str, *flags: str, options: tuple[str, ...] = ("--nodes=2",)) -> str:
    """The number of a job that writes to `folder`."""
    done = subprocess.run(["sbatch", "--parsable", f"--output={folder}/said.txt", *options,
                           f"scripts/slurm/{file}", *FLAGS, *flags], env=queue, cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_interrupted_job_goes_back_into_the_queue_and_resumes(queue, tmp_path):
    out = tmp_path / "out"
    job = submit(queue, tmp_path, "part_two.sbatch", "--sync", "all-reduce", "--max-iterations",
                 "12", "--checkpoint-every", "4", "--output-dir", str(out))
    checkpoints = out / "PartTwo" / "all-reduce" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("*.pt")), seconds=120)
    ask(queue, "scancel", "--signal=TERM", job)  # as two minutes before the time limit
    said = tmp_path / "said.txt"
    wait_until(lambda: "JobState=PENDING" in ask(queue, "scontrol", "show", "job", job))
    # Else it waits two minutes; but in the second of its end slurmd takes it for the old one.
    ask(queue, "scontrol", "update", f"JobId={job}", "StartTime=now+3")
    state = wait_for_job(queue, job)
    assert state == "COMPLETED", said.read_text()
    words = said.read_text()
    for start in (0, 1):
        assert any(says(line, start, job) for line in words.splitlines())
    assert says(words, "slurm") and RESUMED in words
    for rank in range(2):
        steps = read_events(out / "PartTwo" / "all-reduce" / f"metrics_rank{rank}.jsonl", "step")
        assert [step["iteration"] for step in steps] == list(range(12))


@pytest.mark.slow
def test_part_three_as_a_job(queue, tmp_path):
    job = submit(queue, tmp_path, "part_three.sbatch", "--max-iterations", "2", "--output-dir",
                 str(tmp_path / "out"))
    assert wait_for_job(queue, job) == "COMPLETED", (tmp_path / "said.txt").read_text()
    assert (tmp_path / "out" / "PartThree" / "metrics_rank1.jsonl").exists()


@pytest.mark.slow
def test_srun_needs_no_other_command(queue, tmp_path):
    done = subprocess.run(["srun", "-N2", "-n2", sys.executable, "PartThree/main.py", *FLAGS,
                           "--max-iterations", "1", "--output-dir", str(tmp_path)],
                          env={**queue, "MASTER_ADDR": "127.0.0.1"}, cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and says(done.stdout, "2 ranks", "slurm"), done.stderr
