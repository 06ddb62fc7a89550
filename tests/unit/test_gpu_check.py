"""scripts/gpu_check.sh takes every step, whatever becomes of one of them, with flags that exist.

Mutations that turn this red: end with the first step that fails; exit code 0 after one; leave the
step out of the results; misspell a flag in any step.
"""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from benchmarks import peers
from common.options.command_line import parse_command_line
from scripts import prove
from tests.clone import fresh_clone
from tests.ranks import ROOT

# Stands for .venv's Python: names a GPU, and keeps what it was to run.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && { echo "Pretended GPU 1"; exit; }
echo "$@" >> "$COMMANDS"
echo "$1 has run"
case "$*" in *--bits*) exit 3 ;; esac
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("gpu")
    python = folder / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "images").mkdir()
    clone = fresh_clone(folder / "clone")
    done = subprocess.run([clone / "scripts/gpu_check.sh"], capture_output=True, env={
        **os.environ, "VIRTUAL_ENV": str(folder / "environment"), "DATA": str(folder / "images"),
        "COMMANDS": str(folder / "commands.txt")})
    return folder, done.returncode


def test_a_step_that_fails_does_not_end_the_rest(checked):
    folder, code = checked
    text = (folder / "clone/docs/results/gpu_Pretended-GPU-1.md").read_text()
    how = [line.partition(": ")[2].rpartition(",")[0] for line in text.splitlines()
           if line.startswith("## ")]
    assert code == 1 and how == ["passed", "passed", "passed", "failed (3)", "passed"]
    assert text.count("has run") == 5


def test_the_flags_of_every_step_are_the_programs(checked):
    commands = [line.split() for line in (checked[0] / "commands.txt").read_text().splitlines()]
    taken = {"benchmarks/peers.py": peers.parse, "scripts/prove.py": prove.parse,
             "PartOne/main.py": partial(parse_command_line, "PartOne")}
    for program, *words in commands[1:]:
        taken.pop(program, prove.parse)(words)
    assert not taken and commands[0][-1] == "tests/cuda" and (ROOT / "tests/cuda").is_dir()


def test_without_a_gpu_it_is_refused():
    done = subprocess.run([ROOT / "scripts/gpu_check.sh"], capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and "no GPU" in done.stderr
