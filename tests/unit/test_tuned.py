"""Measured convolutions: only when asked for, in a file that says where it was measured.

Mutations that turn this red: leave out fork_rng; return the winner even when it is hardly faster;
believe a file of another program, or an algorithm that does not fit; fall back to the rule for a
shape that the file leaves out; measure the whole batch for a rank's shard; leave out the banner's
line, or the check on the leader before data is loaded.
"""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from common.arithmetic import tuned
from common.arithmetic.choice import Shape, algorithms, use_fast_convolutions
from common.arithmetic.tuned import Tuned, choose_tuned, fastest, is_quiet, measure, read_tuned
from common.banner import announce
from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.precision import Precision
from common.core.world import World
from common.options.command_line import parse_command_line
from common.run.kept_convolutions import prepare_runs
from scripts import tune
from tests.ranks import ROOT

SHAPE = Shape(128, 128, 2, 4, "float32")
SETTINGS, _ = parse_command_line("PartOne", ["--workload", "digits-vgg11"])
NODE = Node(World(), torch.device("cpu"), threads=1)


def written(folder: Path, choices: dict[str, str]) -> Path:
    path = folder / "tuned.json"
    path.write_text(json.dumps(Tuned.here(choices)._asdict()))
    return path


@pytest.mark.parametrize(("best", "winner"), [
    ({"library": 1.0, "toeplitz": 0.5, "winograd-2": 0.7}, "toeplitz"),
    ({"library": 1.0, "toeplitz": 0.97, "winograd-2": 1.2}, "library"),
    ({"library": 1.0, "toeplitz": 1.5, "winograd-2": 0.9}, "winograd-2")])
def test_the_library_keeps_what_is_not_clearly_faster(best, winner):
    assert fastest({name: [9.0, seconds, 9.0] for name, seconds in best.items()}) == winner


def test_a_busy_machine_is_told_from_a_quiet_one():
    assert is_quiet({"library": [1.0, 1.4], "toeplitz": [0.2, 0.29]})
    assert not is_quiet({"library": [1.0, 1.4], "toeplitz": [0.2, 0.31]})


def test_measuring_takes_turns_and_draws_no_random_number_of_the_run():
    state = torch.random.get_rng_state()
    seconds = measure(SHAPE, 2)
    assert list(seconds) == ["library", "toeplitz", "winograd-2"]
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_model_computes_as_the_file_says(tmp_path):
    path = written(tmp_path, {str(SHAPE): "winograd-2"})
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    use_fast_convolutions(model, (128, 2, 2), 4, Precision(), "auto", partial(choose_tuned, path))
    assert algorithms(model) == "winograd-2"


@pytest.mark.parametrize("choices", [{}, {str(SHAPE): "winograd-4"}, {str(SHAPE): "quick"},
                                     {str(SHAPE._replace(samples=5)): "toeplitz"}])
def test_a_shape_that_the_file_leaves_out_is_an_error(choices, tmp_path):
    with pytest.raises(UsageError, match="2x2 maps, 4 samples, float32: measure it with scripts/t"):
        choose_tuned(written(tmp_path, choices), SHAPE)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"x": 3}', "null", json.dumps(
    Tuned("p", "AVX2", "2.15", 2, {"x": 3})._asdict()), json.dumps(
    Tuned("p", "AVX2", "2.15", 2, [])._asdict())])
def test_another_file_is_refused(text, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is no file that scripts/tune.py wrote"):
        read_tuned(path)


def test_the_leader_reads_the_file_before_anything_is_loaded(tmp_path):
    settings = replace(SETTINGS, convolutions=str(tmp_path / "missing.json"))
    with pytest.raises(UsageError, match="missing.json cannot be read: No such file"):
        prepare_runs("PartOne", settings, NODE)
    other = replace(NODE, world=World(rank=1, size=1))
    assert prepare_runs("PartTwo", settings, other) == settings.convolutions


def test_the_banner_says_where_it_was_measured(tmp_path, capsys):
    path = written(tmp_path, {})
    announce("PartOne", replace(SETTINGS, convolutions=str(path)), NODE)
    assert f"3x3 convolutions: {path}, measured on {tuned.processor()}" in capsys.readouterr().out
    announce("PartOne", SETTINGS, NODE)
    said = capsys.readouterr().out
    assert f"(rule for {tuned.instruction_sets()})" in said and "if the model has any" not in said


def test_the_banner_claims_no_convolutions_of_a_model_that_it_does_not_know(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("from common.options.workloads import Workload\n"
                    "MINE = Workload('mine', print, print)\n")
    for workload in (f"{path}:MINE", "image-folder"):
        announce("PartOne", replace(SETTINGS, workload=workload), NODE)
        assert "  3x3 convolutions, if the model has any: " in capsys.readouterr().out
    announce("PartOne", replace(SETTINGS, workload="spiral-mlp"), NODE)
    assert "convolutions" not in capsys.readouterr().out


def test_tune_measures_a_ranks_shard_and_writes_the_batch(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(tuned, "measure", lambda shape, rounds: asked.append(
        (shape.samples, rounds)) or {"library": [3.0, 3.0], shape.candidates()[0]: [1.0, 2.0]})
    path = tmp_path / "tuned.json"
    monkeypatch.setattr(sys, "argv", [
        "tune.py", str(path), "--workload", "digits-vgg11", "--batch-size", "50", "--ranks", "4",
        "--rounds", "2", "--threads", "1"])
    threads = torch.get_num_threads()
    try:
        tune.main()
    finally:
        torch.set_num_threads(threads)
    assert asked == [(13, 2)] * 7
    found = read_tuned(path)
    assert found.threads == 1 and len(found.choices) == 7
    assert found.choices["512 to 512 channels, 2x2 maps, 50 samples, float32"] == "toeplitz"
    said = capsys.readouterr().out
    assert "7 of 7: 512 to 512 channels, 2x2 maps" in said and "warning: turns" in said


@pytest.mark.parametrize("arguments", [
    ["PartOne/main.py", "--convolutions", "fast"], ["scripts/tune.py", "tuned.txt"]])
def test_what_is_no_json_file_is_refused_at_once(arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and ".json" in done.stderr
