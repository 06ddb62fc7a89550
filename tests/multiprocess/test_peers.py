"""benchmarks/peers.py compares the same work, counts it right, and drives the project's own loop.

Mutations that turn this red: cfgs["B"] for the textbook's VGG-11; keep the warm-up steps in
StepClock.seconds; compare each round with the first round's course; tick before the step in
TickingLoader.
"""

import importlib.util
import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from benchmarks import peers
from benchmarks.peer_loops.job import Job, StepClock
from benchmarks.peer_loops.project import TickingLoader
from common.arithmetic import torch_private
from common.core.failures import DataError
from common.model.vgg11 import VGG11
from tests.facts import says
from tests.ranks import ROOT, run_ranks
from tests.small import small_loader

JOB = Job("digits-vgg11", Path(), batch_size=4, steps=2)


def textbook_gap() -> float:
    """How far the course's model is from ours with the same weights, in training."""
    from benchmarks.peer_loops.textbook import textbook_vgg11

    ours, theirs, images = VGG11().double(), textbook_vgg11().double(), torch.randn(4, 3, 32, 32)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    return float((ours(images.double()) - theirs(images.double())).detach().abs().max())


def test_the_textbook_model_computes_what_ours_does():
    assert run_ranks(1, textbook_gap)[0] < 1e-12


def turn(row: str) -> dict:
    from benchmarks.peer_loops.worker import take_turn

    with patch("torch.compile", lambda model: model):  # it takes half a minute
        return take_turn(row, JOB)


PEER = f"lightning_compiled-{'bf16' if torch_private.multiplies_bf16() else 'float32'}"


@pytest.mark.parametrize("row", ["course-float32", PEER, "project-float32"])
def test_every_contestant_trains(row):
    if row.startswith("lightning") and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed: pip install -r requirements-bench.txt")
    found, = run_ranks(1, turn, row)
    assert len(found["seconds"]) == JOB.steps and min(found["seconds"]) > 0


def test_the_clock_leaves_out_the_warm_up(monkeypatch):
    clock, times = StepClock(JOB), iter([0.0, 10.0, 11.0, 13.0])
    monkeypatch.setattr("benchmarks.peer_loops.job.time.perf_counter", lambda: next(times))
    for _ in range(JOB.ticks + 1):
        clock.tick()
    assert clock.seconds() == [1.0, 2.0] and clock.is_done


def test_our_steps_end_where_the_next_batch_is_asked_for():
    clock = StepClock(JOB)
    batches = TickingLoader(small_loader(0, 1), clock).batches(1)
    next(batches)
    assert len(clock.ends) == 0
    next(batches)
    assert len(clock.ends) == 1


ROUNDS = [
    {"course-float32": {"seconds": [1.0, 1.0], "settings": "plain",
                        "threads": 2},
     "project-bf16": {"seconds": [0.25, 0.25], "settings": "fast"}},
    {"course-float32": {"seconds": [2.0, 2.0], "settings": "plain"},
     "project-bf16": {"seconds": [0.5, 0.5], "settings": "fast"}}]


def test_ratios_are_taken_within_a_round():
    table = peers.summarise(ROUNDS, batch_size=100)
    course, ours = table["course-float32"], table["project-bf16"]
    assert (course["images_per_second"], course["least"], course["most"]) == (75.0, 50.0, 100.0)
    assert ours["speed"] == 4.0 and course["speed"] == 1.0


def test_the_program_prints_the_table_and_writes_the_numbers(monkeypatch, tmp_path, capsys):
    asked = iter(ROUNDS)
    monkeypatch.setattr(peers, "measure", lambda options: [next(asked), next(asked)])
    monkeypatch.setattr(sys, "argv", ["peers.py", "--json", str(tmp_path / "peers.json")])
    peers.main()
    said = capsys.readouterr().out
    assert re.search(r"\| project-bf16 \| .* \| 768 \|", said)
    assert says(said, "2 threads", "4.00")
    assert json.loads((tmp_path / "peers.json").read_text())["rows"]["project-bf16"]["speed"] == 4.0


def test_a_library_that_is_missing_is_named_and_left_out(monkeypatch, capsys):
    monkeypatch.setattr(torch_private, "multiplies_bf16", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert peers.that_can_run(list(peers.ROWS), "cpu") == [
        "course-float32", "project-float32", "project-bf16", "project_native-float32"]
    assert says(capsys.readouterr().err, "lightning")


def test_a_processor_without_bf16_products_has_no_rows_of_torchs_in_bf16(monkeypatch, capsys):
    monkeypatch.setattr(torch_private, "multiplies_bf16", lambda: False)
    rows = peers.that_can_run(list(peers.ROWS), "cpu")
    assert "project-bf16" in rows and "lightning-bf16" not in rows
    assert says(capsys.readouterr().err, "bf16", "Lightning")


@pytest.mark.slow  # four processes that load torch
def test_the_literal_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "benchmarks/peers.py", "--workload", "digits-vgg11", "--batch-size", "8",
         "--steps", "2", "--rounds", "1", "--rows", "course-float32", "project-float32",
         "project-bf16"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| project-") == 2


@pytest.mark.slow
def test_a_turn_that_fails_ends_in_its_sentence():
    options = Namespace(workload="digits-vgg11", data_dir=Path(), batch_size=400, steps=9,
                        device="cpu")
    with pytest.raises(DataError, match=r"project-float32\b.*\b2\b.*\b400\b"):
        peers.take_turn("project-float32", options)
