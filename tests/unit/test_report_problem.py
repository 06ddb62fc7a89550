"""One file tells of a run that went wrong, and holds nothing that nobody should send.

Mutations that turn this red: drop Mask from problem_report, or any of its patterns; keep all steps;
let a broken torch end the report.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.reporting.masking import Mask
from common.reporting.problem import LAST_LINES, LAST_STEPS, QUESTIONS, problem_report
from tests.facts import says
from tests.ranks import ROOT
from tests.recorded import write_run

SECRET = "hunter22"
HOME = Path("/home/alice")


@pytest.mark.parametrize("told", [
    f"it ended with {SECRET}.", f'RUN_TOKEN="a {SECRET} b" python3', f'{{"api_key": "{SECRET}"}}',
    f"--password {SECRET}", f"--hub-token={SECRET}", f"Authorization: Bearer x{SECRET}",
    f"https://me:{SECRET}@host/x", f"hf_{SECRET}abcdefgh",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\nx{SECRET}\n-----END OPENSSH PRIVATE KEY-----"])
def test_what_looks_like_a_credential_is_hidden(told):
    known = {"RUN_TOKEN": SECRET} if told.startswith("it ended") else {}
    assert SECRET not in Mask(known, HOME)(told)


@pytest.mark.parametrize("told, left", [
    ("/home/alice/data and /home/bob/x", "~/data and /home/***/x"),
    ("/scratch/alice/data, alice@login1", "/scratch/***/data, ***@login1"),
    ("malice /data/alice-2", "malice /data/alice-2"), ("true --seed 3 10.0.0.1:29500",) * 2])
def test_a_home_folders_name_is_hidden_and_what_is_no_secret_stays(told, left):
    assert Mask({"USE_AUTH": "true", "PATH": "seed"}, HOME)(told) == left


def test_the_report_holds_what_a_maintainer_asks(tmp_path):
    run = write_run(tmp_path / "PartTwo/all-reduce", ranks=2, steps=9)
    (run / "settings.json").write_text(json.dumps({"seed": 7, "data_dir": "/home/alice/images"}))
    (run / "logs_rank1.txt").write_text("".join(f"line {n}\n" for n in range(99)))
    (tmp_path / "rank1.out").write_bytes(b"error: rank 1 \xff\n")
    text = problem_report([tmp_path], {"mtu": 1500}, {"RUN_TOKEN": SECRET, "OMP_NUM_THREADS": "2",
                                                      "EDITOR": "vi"}, HOME)
    assert QUESTIONS in text
    for expected in ("python: 3", "torch: ", "code: ", "mtu: 1500",
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
