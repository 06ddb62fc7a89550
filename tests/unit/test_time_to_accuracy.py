"""benchmarks/time_to_accuracy.py: what it reads out of a run, and what its table says.

Mutations that turn this red: read the test set's figures where images were held out; leave the
checkpoints out of the training time; in a table, another run's number.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import time_to_accuracy
from common.core.failures import DataError
from tests.ranks import ROOT

EVENTS = [{"event": "epoch", "epoch": 1, "loss": 1.0, "seconds": 6.0, "samples": 900},
          {"event": "validation", "accuracy": 0.5, "mirrored_accuracy": 0.6},
          {"event": "checkpoint", "seconds": 0.5},
          {"event": "epoch", "epoch": 1, "loss": 1.0, "seconds": 3.0, "samples": 900},
          {"event": "checkpoint", "seconds": 0.5},
          {"event": "validation", "accuracy": 0.7, "mirrored_accuracy": 0.8}]
SUMMARY = {"test_accuracy": 0.1, "mirrored_test_accuracy": 0.2}


def test_held_out_figures_where_there_are_and_the_tests_are_not_looked_at():
    found = time_to_accuracy.figures(EVENTS, {})
    assert found == pytest.approx({"training": 10.0, "images": 180.0, "accuracy": 70.0,
                                   "mirrored": 80.0})
    plain = [event for event in EVENTS if event["event"] != "validation"]
    assert time_to_accuracy.figures(plain, SUMMARY)["accuracy"] == pytest.approx(10.0)


def test_the_table_has_a_row_a_seed_and_their_mean():
    runs = {1: {"training": 10.0, "launched": 12.0, "images": 180.0, "accuracy": 70.0,
                "mirrored": 80.0},
            2: {"training": 11.0, "launched": 14.0, "images": 183.0, "accuracy": 72.0,
                "mirrored": 85.0}}
    *_, one, two, mean = ([cell.strip() for cell in line.strip("|").split("|")]
                          for line in time_to_accuracy.table(runs).splitlines())
    assert one == ["1", "10.00", "12.00", "180.00", "70.00", "80.00"]
    assert two == ["2", "11.00", "14.00", "183.00", "72.00", "85.00"]
    assert mean[1:] == ["10.50 ± 0.71", "13.00 ± 1.41", "181.50 ± 2.12", "71.00 ± 1.41",
                        "82.50 ± 3.54"]


def write_run(command: list[str]) -> None:
    """Stands for Part One: leaves what it would have left."""
    folder = Path(command[command.index("--output-dir") + 1]) / "PartOne"
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(event) + "\n" for event in EVENTS)
    (folder / "metrics_rank0.jsonl").write_text(lines)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))


@pytest.fixture
def part_one(monkeypatch):
    """The commands that were run: Part One is replaced, and fails the second time."""
    commands = []

    def run(command: list[str], **how) -> argparse.Namespace:
        commands.append(command)
        write_run(command)
        return argparse.Namespace(returncode=len(commands) - 1, stdout="first\nlast", stderr="")
    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_flags_and_seed_reach_part_one_and_its_last_words_are_told(part_one):
    options = argparse.Namespace(data_dir=Path("there"), flags=["--recipe", "record"])
    found = time_to_accuracy.train(7, options)
    assert found["accuracy"] == 70.0 and found["launched"] > 0
    assert part_one[0][-4:] == ["--recipe", "record", "--seed", "7"] and "--tta" in part_one[0]
    with pytest.raises(DataError, match="seed 8 ended with exit code 1: last"):
        time_to_accuracy.train(8, options)


@pytest.mark.slow  # a process that loads torch
def test_the_literal_command():
    done = subprocess.run(
        [sys.executable, "benchmarks/time_to_accuracy.py", "--seeds", "1", "--", "--workload",
         "digits-vgg11", "--recipe", "record", "--batch-size", "64", "--epochs", "1",
         "--max-iterations", "4"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| ") >= 2
