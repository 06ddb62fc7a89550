"""Logs, reports and the phase timer: the assignment's wording, and sums instead of batch means."""

import json
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from common.core.events import read_events
from common.core.failures import UsageError
from common.core.metrics import Totals, summed
from common.core.progress import PHASES, Position, Progress
from common.core.world import World
from common.evaluation import Evaluation
from common.report import confusion_matrix, generate_eval_report
from common.run import run_log
from common.run.run_log import RunLog, Step
from common.step.phase_timer import PhaseTimer
from tests.facts import says


def step(epoch: int, iteration: int, loss: float = 2.3456, duration: float = 0.5) -> Step:
    return Step(Position(epoch, iteration), Totals(4 * loss, 3, 4), duration,
                dict.fromkeys(PHASES, 0.1), 99)


def log_in(tmp_path, **more) -> RunLog:
    return RunLog(tmp_path / "logs_rank0.txt", tmp_path / "metrics_rank0.jsonl", World(), **more)


def test_lines_have_the_assignments_wording(tmp_path):
    with log_in(tmp_path) as log:
        log.open_bar(1, 0, 2)
        log.step(step(1, 0, duration=9.0))
        log.step(step(1, 1, duration=0.5))
        log.epoch(1, Totals(20.0, 6, 8))
    assert (tmp_path / "logs_rank0.txt").read_text() == (
        "Batch Idx: 0, Batch Loss: 2.346, Batch Accuracy: 0.750, Batch Duration: 9.000 seconds\n"
        "Epoch: 1, Train Loss: 2.500, Train Accuracy: 0.750, Avg Batch Duration: 0.500 seconds, "
        "Epoch Duration: 9.500 seconds\n")


def test_an_epochs_end_tells_how_much_memory_the_process_has_held(tmp_path):
    with log_in(tmp_path) as log:
        log.epoch(1, Totals(20.0, 6, 8))
    event, = read_events(tmp_path / "metrics_rank0.jsonl", "memory")
    resident = 4096 * int(Path("/proc/self/statm").read_text().split()[1])
    assert event["resident"] > 0.9 * resident and "device" not in event


def test_a_distributed_rank_says_who_it_is(tmp_path, capsys):
    with RunLog(tmp_path / "l", tmp_path / "m", World(2, 4), distributed=True) as log:
        log.step(step(1, 0))
    assert (tmp_path / "l").read_text().startswith("Rank: 2, Batch Idx: 0, ")
    assert capsys.readouterr().out.startswith("[rank 2 ")


def test_every_step_is_in_the_json_lines_and_every_twentieth_in_words(tmp_path):
    with log_in(tmp_path) as log:
        for iteration in range(41):
            log.step(step(1, iteration))
    events = list(read_events(tmp_path / "metrics_rank0.jsonl", "step"))
    assert [event["iteration"] for event in events] == list(range(41))
    assert events[0]["seconds"].keys() == set(PHASES) and events[0]["bytes_sent"] == 99
    words = (tmp_path / "logs_rank0.txt").read_text().splitlines()
    assert [line.split(",")[0] for line in words] == [
        "Batch Idx: 0", "Batch Idx: 20", "Batch Idx: 40"]


def test_the_leaders_bar_counts_the_whole_run_and_names_the_slowest_phase(tmp_path, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, **settings) -> None:
            self.settings, self.steps = settings, 0
            bars.append(self)

        def update(self) -> None:
            self.steps += 1

        def set_postfix_str(self, text: str) -> None:
            self.text = text

        def close(self) -> None:
            pass

    monkeypatch.setattr(run_log, "tqdm", Bar)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with log_in(tmp_path) as log:
        log.open_bar(2, 10, 40)
        log.step(replace(step(2, 0), seconds={"data": 0.1, "forward": 0.1, "backward": 0.6,
                                              "sync": 0.2, "update": 0.0}))
    assert bars[0].settings["initial"] == 10 and bars[0].settings["total"] == 40
    assert bars[0].steps == 1
    assert says(bars[0].text, "2.346", "8 samples/s", "backward", "60 %")


@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_a_bar_takes_two_terminals(terminal, tmp_path, monkeypatch):
    """mpirun gives its ranks one for standard output, and reads standard error line by line."""
    monkeypatch.setattr(run_log, "tqdm", None)  # calling it would fail
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda name=name: name == terminal,
                            raising=False)
    with log_in(tmp_path) as log:
        log.open_bar(1, 0, 5)


def test_a_resumed_log_holds_each_step_once(tmp_path):
    with log_in(tmp_path) as log:
        for iteration in range(5):
            log.step(step(1, iteration, loss=1.0))
        log.evaluation(1.0, 0.5)
    with (tmp_path / "metrics_rank0.jsonl").open("a") as file:
        file.write('{"event": "step", "epo')  # killed while writing
    with log_in(tmp_path, start=Position(1, 3, 3)) as log:
        for iteration in (3, 4):
            log.step(step(1, iteration, loss=2.0))
        log.evaluation(2.0, 0.5)
    losses = [event["loss"] for event in read_events(tmp_path / "metrics_rank0.jsonl", "step")]
    assert losses == [1.0, 1.0, 1.0, 2.0, 2.0]
    evaluation, = read_events(tmp_path / "metrics_rank0.jsonl", "evaluation")
    assert evaluation["test_loss"] == 2.0  # of a run that was killed while it wrote its report


@pytest.mark.parametrize("name", ["logs_rank0.txt", "metrics_rank0.jsonl"])
def test_a_full_disk_under_a_log_is_a_sentence(name, tmp_path, monkeypatch):
    """Closing writes what is still in the buffer again, and must not fail in its place."""
    monkeypatch.setattr(run_log, "_keep_steps_before", lambda *_: None)  # /dev/full has no end
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(UsageError) as raised, log_in(tmp_path) as log:
        log.note("x")
    assert says(raised.value, tmp_path / name, "No space left on device")
    assert log._text._file.closed and log._metrics._file.closed


def test_totals_are_means_over_samples_not_over_batches():
    totals = Totals()
    totals.add(Totals(Fraction(9), 9, 9))
    totals.add(Totals(Fraction(11), 0, 1))
    assert totals.means() == (2.0, 0.9)
    assert Totals.from_json(totals.as_json()) == totals


def test_sums_of_losses_do_not_depend_on_their_order():
    parts = [Totals(Fraction(loss) * 64, 0, 64) for loss in (1e-30, 1.1, 1e17, -1e17, 0.3)]
    assert summed(parts) == summed(parts[::-1])
    assert summed(parts).means()[0] == float(
        (Fraction(1.1) + Fraction(0.3) + Fraction(1e-30)) / 5)


def test_the_timer_adds_up_and_tells_where_it_is():
    progress = Progress()
    timer = PhaseTimer(progress)
    with pytest.raises(ValueError), timer("sync"):
        assert progress.phase == "sync"
        raise ValueError
    assert progress.phase == "after sync"
    duration, seconds = timer.take()
    assert duration > 0 and seconds["sync"] > 0 and seconds["data"] == 0
    timer.begin()
    assert timer.take()[1] == dict.fromkeys(PHASES, 0.0)


@pytest.mark.parametrize("start, said", [
    ((2, 3, 8), True), ((2, 0, 5), False), ((1, 3, 3), False)])
def test_the_duration_of_an_epoch_that_was_resumed_is_said_to_be_a_part(start, said, tmp_path):
    with log_in(tmp_path, start=Position(*start)) as log:
        log.step(step(2, 3))
        log.epoch(2, Totals(4, 3, 4))
    last = (tmp_path / "logs_rank0.txt").read_text().splitlines()[-1]
    assert last.endswith(" since the resume at iteration 3") is said
    assert "Epoch Duration: 0.500 seconds" in last


def test_the_report(tmp_path):
    generate_eval_report([0, 1, 1, 2], [0, 1, 2, 2], 0.12345, tmp_path / "r" / "report.txt",
                         "Epoch_3.pt", class_names=["ant", "bee", "cat"])
    text = (tmp_path / "r" / "report.txt").read_text()
    assert text.startswith("Metrics for the checkpoint: Epoch_3.pt\n"
                           "Test Loss: 0.123, Test Accuracy: 0.750\n")
    assert "Classification Report" in text and "Confusion Matrix" in text and "bee" in text
    assert "[[1 0 0]\n [0 1 1]\n [0 0 1]]" in text
    data = json.loads((tmp_path / "r" / "report.json").read_text())
    assert data["test_accuracy"] == 0.75 and data["confusion_matrix"][1] == [0, 1, 1]
    assert "macro average" not in text


def test_the_report_names_classes_without_a_test_sample(tmp_path):
    generate_eval_report([0, 1, 1], [0, 1, 3], 0.1, tmp_path / "report.txt", "Epoch_3.pt",
                         class_names=["ant", "bee", "cat", "dog"])
    last = (tmp_path / "report.txt").read_text().splitlines()[-1]
    assert says(last, "cat", "dog", "macro average", 0) and "ant" not in last


def test_a_report_on_one_class_warns_of_nothing(tmp_path, recwarn):
    generate_eval_report([0, 0], [0, 0], 0.1, tmp_path / "report.txt", "Epoch_1.pt",
                         class_names=["ant"])
    assert "[[2]]" in (tmp_path / "report.txt").read_text() and not list(recwarn)


def test_the_confusion_matrix_is_scikit_learns():
    from sklearn import metrics

    truth, predictions = np.random.default_rng(1).integers(0, 4, (2, 50))
    matrix = confusion_matrix(Evaluation(0.0, truth, predictions, tuple("abcde")))
    assert np.array_equal(matrix, metrics.confusion_matrix(truth, predictions, labels=range(5)))
