"""Output that nobody takes: training goes on, tables end quietly, a full disk gets a sentence.

Mutations that turn this red: drop protect_output or require_output from run_program; let `_call`
pass on sys.exit(0); drop let_output_be_lost from start; no `_nowhere`.
"""

import os
import subprocess
import sys

import pytest

from common.core.events import read_events
from tests.facts import says
from tests.ranks import ROOT, program, started
from tests.recorded import write_course
from tests.workload import SMALL, plant


def ended(words: list, stdout: int) -> subprocess.CompletedProcess:
    """A program of this project, with that standard output."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, stdout=stdout,
                          stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("words", [["scripts/status.py"], ["PartOne/main.py", "--help"]])
def test_a_reader_that_has_left_is_not_missed(words, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = ended([*words, write_course(tmp_path)], writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_on_a_full_disk_is_a_failure_in_a_sentence(tmp_path):
    with open("/dev/full", "w") as full:
        done = ended(["scripts/status.py", write_course(tmp_path)], full.fileno())
    sentence, = done.stderr.splitlines()
    assert done.returncode == 2
    assert sentence.startswith("error: ") and says(sentence, "No space left on device")


def plant_without_output() -> None:
    """The small workload, in a process whose standard output was closed before it began."""
    plant()
    os.close(1)
    sys.stdout = None  # as the interpreter leaves it


@pytest.mark.parametrize("target, before", [("/dev/full", plant),
                                            ("/dev/null", plant_without_output)])
def test_output_that_cannot_be_written_does_not_stop_training(target, before, tmp_path):
    (tmp_path / "rank0.out").symlink_to(target)
    part_one = program("PartOne", [*SMALL, "--output-dir", str(tmp_path)], tmp_path, "rank0",
                       before=before)
    with started([part_one.process]):
        pass
    assert part_one.process.exitcode == 0
    assert len(list(read_events(tmp_path / "PartOne/metrics_rank0.jsonl", "step"))) == 18
