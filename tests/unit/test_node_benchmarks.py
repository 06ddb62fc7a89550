"""benchmarks/loader.py and time_to_accuracy.py: what they read out of a run, and what they leave.

Mutations that turn this red: read the test set's figures where images were held out; leave the
checkpoints out of the training time; count the first iteration among the steps; in a table, another
run's number, the mean for the median, seconds for milliseconds.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import loader, time_to_accuracy
from common.core.failures import DataError
from common.core.progress import PHASES
from tests.facts import says
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


def test_a_row_of_the_loaders_table_is_of_its_own_numbers():
    """Medians and ranges of numbers that all differ, each in the unit that its row names."""
    runs = [{"torch": 1.0 + 0.1 * n, "start": 3.0 + 0.2 * n, "first": 5.0 + 0.3 * n,
             "step": 0.5 + 0.01 * n, "data": 0.02 + 0.001 * n} for n in range(3)]
    rows = loader.rows({"loader": [900.0, 1000.0, 1300.0], "transforms": [90.0, 80.0, 60.0],
                        "runs": runs}, "bf16")
    assert [figures for _, *figures in rows] == [
        ["1,000", "900 to 1,300"], ["80", "60 to 90"], ["510", "500 to 520"],
        ["21.0", "20.0 to 22.0"], ["4.12", "4.00 to 4.23"], ["1.10", "1.00 to 1.20"],
        ["2.10", "2.00 to 2.20"], ["4.79", "4.50 to 5.08"]]
    assert [name.split()[-1] for name, *_ in rows[2:]] == ["ms", "ms", "%", "s", "s", "s"]
    assert says(rows[2][0], "bf16")


def write_run(command: list[str], code: int = 0) -> None:
    """Stands for Part One: leaves what it would have left."""
    folder = Path(command[command.index("--output-dir") + 1]) / "PartOne"
    folder.mkdir(parents=True)
    events = [{"event": "start", "time": 112.0}] + [
        {"event": "step", "epoch": 1, "iteration": number, "loss": 1.0, "samples": 8,
         "bytes_sent": 0, "duration": duration,
         "seconds": {**dict.fromkeys(PHASES, 0.0), "data": duration / 10}}
        for number, duration in enumerate((9.0, 2.0, 1.0, 3.0))] + EVENTS
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "metrics_rank0.jsonl").write_text(lines)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))


@pytest.fixture
def part_one(monkeypatch):
    """Part One is replaced; the clock moves 4 s with importing torch. The commands that were run"""
    commands = []

    def run(command: list[str], **how) -> argparse.Namespace:
        commands.append(command)
        if "PartOne/main.py" in command:
            write_run(command)
        return argparse.Namespace(returncode=len(commands) > 4, stdout="first\nlast", stderr="")
    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_start_is_counted_from_the_launch_and_the_first_iteration_is_apart(part_one,
                                                                               monkeypatch):
    times = iter([100.0, 104.0])
    monkeypatch.setattr(loader.time, "time", lambda: next(times))
    options = argparse.Namespace(workload="digits-vgg11", data_dir=Path(), batch_size=8, steps=4,
                                 precision="bf16")
    assert loader.train(options) == {"torch": 4.0, "start": 8.0, "first": 9.0, "step": 2.0,
                                     "data": pytest.approx(0.2)}


def test_flags_and_seed_reach_part_one_and_its_last_words_are_told(part_one):
    options = argparse.Namespace(data_dir=Path("there"), flags=["--recipe", "record"])
    found = time_to_accuracy.train(7, options)
    assert found["accuracy"] == 70.0 and found["launched"] > 0
    assert part_one[0][-4:] == ["--recipe", "record", "--seed", "7"] and "--tta" in part_one[0]
    part_one.extend([[]] * 4)
    with pytest.raises(DataError) as raised:
        time_to_accuracy.train(8, options)
    assert says(raised.value, 8, "last")


@pytest.mark.slow  # processes that load torch
def test_the_literal_commands():
    for command in (["benchmarks/loader.py", "--workload", "digits-vgg11", "--batch-size", "16",
                     "--repeats", "1", "--steps", "3"],
                    ["benchmarks/time_to_accuracy.py", "--seeds", "1", "--", "--workload",
                     "digits-vgg11", "--recipe", "record", "--batch-size", "64", "--epochs", "1",
                     "--max-iterations", "4"]):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
                              timeout=200)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n| ") >= 2
