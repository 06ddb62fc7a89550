"""Trackers: the leader's figures reach TensorBoard and anyone with the same three methods.

Mutations that turn this red: a tracker on every rank; `step` counted from the epoch's start; the
epoch's mean not logged; no close when the run fails.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.core.failures import UsageError
from common.core.progress import Position
from common.core.world import World
from common.run import trackers
from common.run.run_log import RunLog
from common.run.state import Totals
from tests.ranks import ROOT
from tests.unit.test_records import step


class Notebook:
    def __init__(self, folder) -> None:
        self.pages = []

    def start(self, settings) -> None:
        self.pages.append(("start", settings["seed"]))

    def log(self, at, values) -> None:
        self.pages.append((at, {name: round(value, 3) for name, value in values.items()}))

    def close(self) -> None:
        self.pages.append("close")


def test_a_tracker_is_told_everything_once_and_closed_when_the_run_fails(tmp_path):
    notebook = Notebook(tmp_path)
    with pytest.raises(KeyError), RunLog(tmp_path / "l", tmp_path / "m", World(),
                                         tracker=notebook) as log:
        log.begin({"seed": 7})
        log.step(step(2, 0).__class__(**{**vars(step(2, 0)), "at": Position(2, 0, 40)}))
        log.epoch(2, Totals(20.0, 6, 8))
        log.evaluation(1.5, 0.75)
        raise KeyError
    assert notebook.pages == [
        ("start", 7),
        (40, {"batch/loss": 2.346, "batch/accuracy": 0.75, "batch/seconds": 0.5}),
        (40, {"epoch/loss": 2.5, "epoch/accuracy": 0.75}),
        (40, {"test/loss": 1.5, "test/accuracy": 0.75}), "close"]


def test_the_tracker_of_the_documents_works(tmp_path):
    text = (ROOT / "docs" / "trackers.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 22
    names = {"Path": Path, "Mapping": Mapping, "Any": Any, "TRACKERS": {},
             "Tracker": trackers.Tracker}
    exec(code, names)
    with RunLog(tmp_path / "l", tmp_path / "m", World(),
                tracker=names["TRACKERS"]["csv"](tmp_path)) as log:
        log.begin({"seed": 7})
        log.validation(1, 0.5, 0.25)
    assert (tmp_path / "tracker.csv").read_text().splitlines() == [
        "# seed: 7", "0,validation/loss,0.5", "0,validation/accuracy,0.25"]


def test_only_the_leader_has_a_tracker(tmp_path, monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "notebook", Notebook)
    assert isinstance(trackers.create_tracker("notebook", tmp_path, True), Notebook)
    assert type(trackers.create_tracker("notebook", tmp_path, False)) is trackers.Tracker


def test_every_tracker_can_be_asked_for():
    from common.options.command_line import _parser

    flag, = (action for action in _parser("PartOne")._actions if action.dest == "tracker")
    assert tuple(flag.choices) == tuple(trackers.TRACKERS)


def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = trackers.create_tracker("tensorboard", tmp_path, True)
    tracker.start({"seed": 1})
    tracker.log(3, {"batch/loss": 2.5})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("batch/loss")] == [(3, 2.5)]


def test_without_the_package_one_sentence_says_what_to_install():
    check = ("import sys; sys.modules['tensorboard'] = None\n"
             "from pathlib import Path\n"
             "from common.core.failures import UsageError\n"
             "from common.run.trackers import create_tracker\n"
             "try:\n    create_tracker('tensorboard', Path('x'), True)\n"
             "except UsageError as error:\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert "pip install -r requirements-tracker.txt" in done.stdout, done.stderr
    assert UsageError.exit_code == 2
