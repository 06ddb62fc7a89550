"""Trackers: the leader's figures reach TensorBoard, MLflow, wandb, and whoever has three methods.

Mutations that turn this red: a tracker on every rank; `step` counted from the epoch's start; the
epoch's mean not logged; no close when the run fails; find_tracker left out of prepare_runs; a new
run of MLflow's or wandb's at each start; what waits not sent at the end; no purge_step; the live
page in the run's own session or on its terminal, of another folder, or without --watch; wandb's
mode left to wandb, its run not finished, or its process left behind.
"""

import json
import os
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.metrics import Totals
from common.core.progress import Position
from common.core.world import World
from common.options.command_line import parse_command_line
from common.reporting.recorded_run import find_runs
from common.run import trackers
from common.run.kept_arithmetic import prepare_runs
from common.run.run_log import RunLog
from common.settings.settings import Settings
from tests.cluster.box import wait_until
from tests.facts import says
from tests.ranks import ROOT
from tests.unit.test_records import log_in, step


@pytest.fixture(autouse=True)
def the_settings_of_mlflow_and_wandb() -> Iterator[None]:
    """Are variables of the environment, which go on to later tests otherwise."""
    with patch.dict(os.environ):
        yield


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


OWN = f"{ROOT / 'examples' / 'own_tracker.py'}:CsvTracker"
NODE = Node(World(), torch.device("cpu"), threads=1)


def test_the_tracker_of_the_documents_works(tmp_path):
    text = (ROOT / "docs" / "trackers.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert code in (ROOT / "examples" / "own_tracker.py").read_text()
    with RunLog(tmp_path / "l", tmp_path / "m", World(),
                tracker=trackers.create_tracker(OWN, tmp_path, True)) as log:
        log.begin({"seed": 7})
        log.validation(1, 0.5, 0.25)
    assert (tmp_path / "tracker.csv").read_text().splitlines() == [
        "# seed: 7", "0,validation/loss,0.5", "0,validation/accuracy,0.25"]


PAGE = """
import os, sys, time
streams = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
for count in range(3000):
    with open(sys.argv[1] + "/new", "w") as file:
        print(os.getpid(), count, sys.argv[1:], streams, file=file)
    os.replace(sys.argv[1] + "/new", sys.argv[1] + "/page")
    time.sleep(0.02)
"""
RUN = """
import signal, sys
from pathlib import Path
from common.core.world import World
from common.run import trackers
from common.run.run_log import RunLog
for number in (signal.SIGINT, signal.SIGHUP):  # which tests in the background may ignore
    signal.signal(number, signal.SIG_DFL)
folder = Path(sys.argv[1])
trackers.ROOT = folder
with RunLog(folder / "l", folder / "m", World(),
            tracker=trackers.create_tracker("page", folder, True)) as log:
    log.begin({})
    sys.stdin.read()
"""


def renewed(page: Path, since: str = "") -> str:
    """The page's text once it differs from `since`."""
    wait_until(lambda: page.exists() and page.read_text() not in ("", since))
    return page.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_live_page_is_renewed_after_any_signal_that_ends_the_run(number, tmp_path):
    """A terminal sends it so, to every process of the run's group."""
    page = tmp_path / "page"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "compare.py").write_text(PAGE)
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, process_group=0,
                           stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    told = renewed(page)
    try:
        os.killpg(run.pid, number)
        assert run.wait(60) != 0
        told = renewed(page, renewed(page, told))
        _, _, rest = told.strip().split(" ", 2)
        assert rest == f"{[str(tmp_path), '--watch']} {['/dev/null'] * 3}"
    finally:
        os.kill(int(told.split()[0]), signal.SIGKILL)


def test_the_command_of_the_live_page_draws_the_run(tmp_path, monkeypatch, capsys):
    """The tracker's command is called here, with a run that has ended; it says where that is."""
    started: list[list[str]] = []
    with log_in(tmp_path, tracker=trackers.create_tracker("page", tmp_path, True)) as log:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
            log.begin({"seed": 7}, world_size=1, position=(1, 0, 0), iterations_per_epoch=2,
                      ran_on={})
            log.step(step(1, 0))
    (_, program, *flags), = started
    assert says(capsys.readouterr().out, tmp_path / "comparison.html")
    drawn: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", [program, *flags])
    monkeypatch.setattr("common.reporting.live.watch", lambda folders, draw, say: drawn.append(
        [str(run.folder) for run in find_runs(folders)]))
    monkeypatch.setattr("common.reporting.page.Page.of", lambda *_: sys.exit(0))
    with pytest.raises(SystemExit):
        runpy.run_path(program, run_name="__main__")
    assert drawn == [[str(tmp_path)]]


def test_only_the_leader_has_a_tracker(tmp_path):
    assert type(trackers.create_tracker(OWN, tmp_path, True)).__name__ == "CsvTracker"
    assert type(trackers.create_tracker(OWN, tmp_path, False)) is trackers.Tracker


def test_every_tracker_can_be_asked_for():
    assert Settings.rows()["tracker"].choices == tuple(trackers.TRACKERS)
    for name in (*trackers.TRACKERS, OWN):
        assert parse_command_line("PartOne", ["--tracker", name])[0].tracker == name


@pytest.mark.parametrize("name, facts", [
    ("NUMBER", ["--tracker", "int"]), ("Mute", ["--tracker", "log", "close"]),
    ("Nobody", ["NUMBER, Mute"])])
def test_what_is_no_tracker_is_named_before_the_run(name, facts, tmp_path):
    (tmp_path / "mine.py").write_text("NUMBER = 1\nclass Mute:\n    def start(self, settings): ...")
    settings = Settings(tracker=f"{tmp_path / 'mine.py'}:{name}", output_dir=tmp_path)
    with pytest.raises(UsageError) as refused:
        prepare_runs("PartOne", settings, NODE)
    assert says(refused.value, tmp_path / "mine.py", name, *facts)


def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = trackers.create_tracker("tensorboard", tmp_path, True)
    tracker.start({"seed": 1})
    tracker.log(3, {"batch/loss": 2.5})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("batch/loss")] == [(3, 2.5)]


def test_tensorboard_shows_a_step_that_was_trained_again_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, end in ((0, 6), (4, 8)):  # killed after its step 5, and resumed at its checkpoint
        with RunLog(tmp_path / "l", tmp_path / "m", World(), Position(1, start, start),
                    tracker=trackers.create_tracker("tensorboard", tmp_path, True)) as log:
            log.begin({"seed": 1})
            for at in range(start, end):
                log.step(replace(step(1, at, loss=start), at=Position(1, at, at)))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("batch/loss")] == [
        *((at, 0) for at in range(4)), *((at, 4) for at in range(4, 8))]


def test_mlflows_example_writes_a_run(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = f"{ROOT / 'examples' / 'mlflow_tracker.py'}:MlflowTracker"
    tracker = trackers.create_tracker(place, tmp_path, True)
    tracker.start({"seed": 7, "model": None})
    tracker.log(3, {"batch/loss": 2.5})
    tracker.close()
    client = MlflowClient((tmp_path / "mlflow").as_uri())
    run, = client.search_runs([client.get_experiment_by_name("training").experiment_id])
    assert run.data.params["seed"] == "7" and run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "batch/loss")
    assert [(one.step, one.value) for one in history] == [(3, 2.5)]


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind wandb's own seven bytes."""
    place, record = 7, b""
    while place + 7 < len(data):
        if (left := 2**15 - place % 2**15) < 7:  # a header does not reach over two blocks
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7:place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def written_by_wandb(folder: Path) -> list[dict]:
    """The contents of the .wandb files in `folder`, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("offline-run-*/run-*.wandb")):
        records = [Record.FromString(each) for each in log_records(path.read_bytes())]
        found.append({
            "run": next(each.run for each in records if each.WhichOneof("record_type") == "run"),
            "config": {item.key: json.loads(item.value_json) for each in records
                       for item in (*each.run.config.update, *each.config.update)},
            "history": [{"".join(item.nested_key) or item.key: json.loads(item.value_json)
                         for item in each.history.item} for each in records
                        if each.WhichOneof("record_type") == "history"],
            "exit": [each.exit.exit_code for each in records
                     if each.WhichOneof("record_type") == "exit"]})
    return found


def children() -> set[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(path.read_text().split())


def test_wandb_holds_offline_what_was_logged_and_a_resumed_run_goes_on_in_it(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    before = children()
    for seed, at, name in ((1, 3, "batch/loss"), (2, 4, "test/loss")):
        tracker = trackers.create_tracker("wandb", tmp_path / "PartOne", True)
        tracker.start({"seed": seed, "sync": ["ddp"], "model": None})
        tracker.log(at, {"batch/accuracy": 0.5})
        tracker.log(at, {name: 2.5 - seed})
        tracker.close()
    assert children() <= before
    first, second = written_by_wandb(tmp_path / "PartOne" / "wandb")
    assert (first["run"].project, first["run"].display_name) == ("training", "PartOne")
    assert first["run"].run_id == second["run"].run_id
    assert first["config"]["seed"] == 1 and second["config"]["seed"] == 2
    assert second["config"]["sync"] == ["ddp"]
    for part, row in ((first, {"_step": 3, "batch/accuracy": 0.5, "batch/loss": 1.5}),
                      (second, {"_step": 4, "batch/accuracy": 0.5, "test/loss": 0.5})):
        assert [row.items() <= each.items() for each in part["history"]] == [True]
    assert (first["exit"], second["exit"]) == ([1], [0])


@pytest.mark.parametrize("example, command", [
    ("comet_tracker.py:CometTracker", "pip install comet_ml"),
    ("mlflow_tracker.py:MlflowTracker", "pip install mlflow-skinny")])
def test_an_example_says_which_package_it_lacks(example, command, tmp_path, monkeypatch, capsys):
    file = example.partition(":")[0]
    shutil.copy(ROOT / "examples" / file, tmp_path)  # another test has imported the example itself
    monkeypatch.setitem(sys.modules, command.split()[-1].partition("-")[0], None)
    with pytest.raises(UsageError) as raised:
        trackers.find_tracker(f"{tmp_path / example}")
    assert says(raised.value, f"{sys.executable} -m {command}") and not capsys.readouterr().err


def test_comets_example_leaves_an_archive_to_upload(tmp_path, monkeypatch):
    pytest.importorskip("comet_ml")
    place = f"{ROOT / 'examples' / 'comet_tracker.py'}:CometTracker"
    tracker = trackers.create_tracker(place, tmp_path, True)
    tracker.start({"seed": 7, "model": None})
    tracker.log(3, {"batch/loss": 2.5})
    tracker.close()
    archive, = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        messages = [json.loads(line)["payload"] for line in file.read("messages.json").splitlines()]
    told = [each["metric"] for each in messages if "metric" in each]
    assert [(one["metricName"], one["metricValue"], one["step"]) for one in told
            if one["metricName"] == "batch/loss"] == [("batch/loss", 2.5, 3)]


@pytest.mark.parametrize("name, module", [("tensorboard", "torch.utils.tensorboard"),
                                          ("wandb", "wandb")])
def test_without_the_package_one_sentence_says_what_to_install(name, module, tmp_path,
                                                               monkeypatch):
    """Before anything else of the run: no data, no model and no folder has been touched."""
    monkeypatch.setitem(sys.modules, module, None)
    settings = Settings(tracker=name, output_dir=tmp_path)
    with pytest.raises(UsageError, match="pip install -r requirements-tracker.txt"):
        prepare_runs("PartOne", settings, NODE)
    other = Node(World(rank=1, size=1), torch.device("cpu"), threads=1)
    prepare_runs("PartTwo", settings, other)
