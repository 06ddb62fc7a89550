"""One file tells of a run that went wrong, and of the environment what is on its list alone.

Mutations that turn this red: take all variables, or "RUN_" among VARIABLES; keep the home folder's
name; keep all steps; let a broken torch end the report.
"""

import json
import subprocess
import sys

import pytest

from common.reporting.problem import LAST_LINES, LAST_STEPS, QUESTIONS, problem_report
from tests.facts import says
from tests.ranks import ROOT
from tests.recorded import write_run

SECRET = "hunter22"


def test_the_report_holds_what_a_maintainer_asks(tmp_path):
    run = write_run(tmp_path / "PartTwo/all-reduce", ranks=2, steps=9)
    (run / "settings.json").write_text(json.dumps({"seed": 7, "data_dir": "/home/alice/images"}))
    (run / "logs_rank1.txt").write_text("".join(f"line {n}\n" for n in range(99)))
    (tmp_path / "rank1.out").write_bytes(b"error: rank 1 \xff\n")
    text = problem_report([tmp_path], {"mtu": 1500}, {
        "RUN_TOKEN": SECRET, "SLURM_JWT": SECRET, "WANDB_API_KEY": SECRET, "OMP_NUM_THREADS": "2",
        "EDITOR": "vi", "HOME": "/home/alice"})
    for expected in (QUESTIONS, "python: 3", "torch: ", "code: ", "mtu: 1500",
                     "OMP_NUM_THREADS: 2", '"seed": 7', "~/images", "line 98\n", "error: rank 1",
                     "metrics_rank1.jsonl", '"event": "start"', '"event": "evaluation"'):
        assert expected in text
    assert SECRET not in text and "alice" not in text and "EDITOR" not in text
    assert f"line {98 - LAST_LINES}\n" not in text
    assert text.count('"event": "step"') == 2 * LAST_STEPS


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_writes_one_file_even_where_torch_cannot_be_imported(broken, tmp_path):
    if broken:
        (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is missing')")
    folder = write_run(tmp_path / "out/PartOne").parent
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/report_problem.py", folder], text=True,
        capture_output=True, env={"PYTHONPATH": str(tmp_path), "MY_TOKEN": SECRET, "HOME": "/root"})
    assert done.returncode == 0, done.stderr
    text = (folder / "problem.txt").read_text()
    assert ("OSError: libtorch.so is missing" in text) == broken == ("disk_free: " not in text)


def test_a_missing_folder_is_named(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "scripts/report_problem.py", tmp_path / "no"],
                          text=True, capture_output=True)
    assert done.returncode == 2 and says(done.stderr, tmp_path / "no")
