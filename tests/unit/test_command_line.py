"""Flags: every mistake is one sentence and exit code 2, before anything heavy is imported."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.core.failures import UsageError
from common.core.settings import OPTIMIZERS, SCHEDULES
from common.options.command_line import _parser, parse_command_line
from common.options.workloads import WORKLOADS
from tests.ranks import ROOT

SCREEN = 60  # lines of a terminal window


def test_defaults_are_the_assignments_numbers():
    settings, world = parse_command_line("PartOne", [])
    assert (settings.batch_size, settings.learning_rate, settings.momentum,
            settings.weight_decay, settings.log_every) == (256, 0.1, 0.9, 1e-4, 20)
    assert settings.workload == "cifar10-vgg11" and world.size == 1


def test_part_two_runs_both_tasks_unless_told():
    assert parse_command_line("PartTwo", [])[0].sync == ("gather-scatter", "all-reduce")
    assert parse_command_line("PartTwo", ["--sync", "all-reduce"])[0].sync == ("all-reduce",)


def test_local_strategies_have_the_papers_numbers_unless_told():
    defaults, _ = parse_command_line("PartTwo", ["--sync", "diloco"])
    assert (defaults.sync_every, defaults.outer_learning_rate, defaults.outer_momentum) == (
        50, 0.7, 0.9)
    told, _ = parse_command_line("PartTwo", [
        "--sync", "all-reduce,diloco", "--sync-every", "7", "--outer-learning-rate", "0.5",
        "--outer-momentum", "0.1"])
    assert (told.sync_every, told.outer_learning_rate, told.outer_momentum) == (7, 0.5, 0.1)
    assert told.trajectory()["sync_every"] == 7 and told.local_sync == ("diloco",)
    assert "sync_every" not in parse_command_line("PartTwo", [])[0].trajectory()


def test_early_stopping_is_patience_and_gain():
    held_out = ["--validation-fraction", "0.1", "--early-stopping"]
    for text, meaning in (("3", (3, 0.0)), ("2:0.5", (2, 0.5)), ("none", ())):
        assert parse_command_line("PartOne", [*held_out, text])[0].early_stopping == meaning


def test_every_row_fits_its_names():
    """A row's names are checked by nobody before a run looks them up."""
    assert set(WORKLOADS) == {"cifar10-vgg11", "digits-vgg11", "mnist-mlp", "mnist-cnn",
                              "spiral-mlp", "image-folder"}
    for name, row in WORKLOADS.items():
        settings, _ = parse_command_line("PartOne", ["--workload", name])
        assert settings.optimizer in OPTIMIZERS and settings.schedule in SCHEDULES
        assert row.criterion in ("cross-entropy", "negative-log-likelihood")


def test_the_tutorials_numbers():
    numbers = {name: parse_command_line("PartOne", ["--workload", name])[0] for name in WORKLOADS}
    mlp, cnn, spiral = (numbers[name] for name in ("mnist-mlp", "mnist-cnn", "spiral-mlp"))
    assert (mlp.batch_size, mlp.epochs, mlp.optimizer, mlp.log_every) == (32, 5, "adam", 100)
    assert (cnn.batch_size, cnn.epochs, cnn.optimizer, cnn.learning_rate) == (64, 14, "adadelta", 1)
    assert (cnn.schedule, cnn.gamma, cnn.step_epochs) == ("step", 0.7, 1)
    assert WORKLOADS["mnist-cnn"].criterion == "negative-log-likelihood"
    assert (spiral.epochs, spiral.early_stopping, spiral.optimizer) == (50, (3, 0.01), "adam")
    assert spiral.batch_size == 4 * 32


def test_short_cluster_flags():
    _, world = parse_command_line("PartThree", ["-M", "10.0.0.1", "-N", "4", "-R", "3"])
    assert (world.rank, world.size, world.master_address) == (3, 4, "10.0.0.1")


def test_a_workloads_row_gives_the_defaults_and_flags_overrule_it():
    settings, _ = parse_command_line("PartOne", ["--workload", "digits-vgg11", "--epochs", "9"])
    assert settings.batch_size == 64 and settings.epochs == 9


@pytest.mark.parametrize("flags, words", [
    (["--epochs", "0"], ["--epochs", "'0'", "at least 1"]),
    (["--learning-rate", "nan"], ["--learning-rate", "'nan'"]),
    (["--momentum", "1"], ["--momentum", "'1'"]),
    (["--batch-size", "3.5"], ["--batch-size", "'3.5'"]),
    (["--workload", "imagenet"], ["imagenet", "digits-vgg11"]),
    (["--precision", "fp8"], ["fp8", "bf16"]),
    (["--sync", "gossip"], ["gossip", "all-reduce"]),
    (["--sync", "all-reduce,all-reduce"], ["twice"]),
    (["--optimizer", "lion"], ["lion", "adadelta"]),
    (["--schedule", "exponential"], ["exponential", "one-cycle"]),
    (["--accumulate", "0"], ["--accumulate", "'0'"]),
    (["--early-stopping", "3:x", "--validation-fraction", "0.1"], ["--early-stopping", "'x'"]),
    (["--early-stopping", "0", "--validation-fraction", "0.1"], ["--early-stopping", "'0'"]),
    (["--early-stopping", "3"], ["--early-stopping", "--validation-fraction"]),
    (["--validation-fraction", "1"], ["--validation-fraction", "'1'"]),
    (["--no-such-flag"], ["--no-such-flag"]),
    (["--wire", "bf16", "--sync", "all-reduce-per-tensor"], ["--wire bf16", "-per-tensor"]),
    (["--sync", "local-sgd", "--sync-every", "0"], ["--sync-every", "'0'", "at least 1"]),
    (["--sync", "all-reduce", "--sync-every", "5"], ["--sync-every", "local-sgd or diloco"]),
    (["--sync", "local-sgd", "--outer-momentum", "0"], ["--outer-momentum", "--sync diloco"]),
    (["--sync", "diloco", "--outer-learning-rate", "0"], ["--outer-learning-rate", "'0'"]),
    (["--sync", "local-sgd,all-reduce", "--wire", "int4"], ["--wire int4", "and all-reduce sends",
                                                            "bf16 or fp16"]),
    (["--wire", "int8"], ["--wire int8", "and gather-scatter sends"]),
    (["--sync", "diloco", "--batch-norm", "synchronised"], ["--batch-norm", "every layer"]),
    (["--sync", "local-sdg"], ["did you mean local-sgd?"]),
    (["--epoch", "3"], ["--epoch", "did you mean --epochs?"]),
    (["--learning_rate", "1"], ["did you mean --learning-rate?"]),
    (["--workload", "cifar-vgg11"], ["did you mean cifar10-vgg11?"]),
    (["--precision", "bf61"], ["did you mean bf16?"]),
    (["--sync", "allreduce"], ["did you mean all-reduce?"]),
    (["--tracker", "tensorbord"], ["did you mean tensorboard?"]),
    (["--profile", "1:0"], ["--profile", "'0'", "at least 1"]),
    (["two\nlines"], ["two lines"]),
    (["-N", "4", "-R", "0"], ["--master-ip"]),
    (["-M", "h", "-N", "4", "-R", "4"], ["rank 4", "0 to 3"]),
    (["-M", "h", "-N", "9", "-R", "0", "--batch-size", "8"], ["8", "9 ranks"]),
])
def test_mistakes_are_named(flags, words):
    with pytest.raises(UsageError) as raised:
        parse_command_line("PartTwo", flags)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


FLAGS = [flag for action in _parser("PartTwo")._actions for flag in action.option_strings]
COMMAND_LINES = st.lists(st.text(max_size=8) | st.sampled_from(FLAGS) | st.sampled_from(
    ["1", "-1", "0", "1e9", "nan", "auto", "all-reduce", "10.0.0.1", "digits-vgg11", "3.5", ""]),
    max_size=8)


def check_command_line(arguments: list[str]) -> None:
    if "-h" in arguments or "--help" in arguments:
        return
    try:
        settings, world = parse_command_line("PartTwo", arguments)
        assert 0 <= world.rank < world.size <= settings.batch_size
    except UsageError as error:
        assert str(error) and "\n" not in str(error)


@settings(max_examples=200)
@given(COMMAND_LINES)
def test_any_command_line_is_understood_or_refused_in_one_sentence(arguments):
    check_command_line(arguments)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(COMMAND_LINES)
def test_two_thousand_command_lines(arguments):
    check_command_line(arguments)


@pytest.mark.parametrize("flags, code", [(["--help"], 0), (["--epochs", "none"], 2)])
@pytest.mark.parametrize("part", ["PartOne", "PartTwo", "PartThree"])
def test_help_and_mistakes_import_nothing_heavy(part, flags, code):
    check = ("import runpy, sys\n"
             f"sys.argv = ['main.py', *{flags!r}]\n"
             "try:\n"
             f"    runpy.run_path({str(ROOT / part / 'main.py')!r}, run_name='__main__')\n"
             "finally:\n"
             "    heavy = {'torch', 'numpy', 'sklearn', 'torchvision'} & set(sys.modules)\n"
             "    assert not heavy, heavy\n")
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True,
                           timeout=60)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (ended.stderr.count("\n") == 1) == (code == 2)


def test_nothing_is_suggested_for_what_is_like_nothing():
    with pytest.raises(UsageError) as raised:
        parse_command_line("PartTwo", ["--workload", "zzz"])
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize("flag, window", [("2", (2, 5)), ("3:40", (3, 40))])
def test_profile_takes_an_epoch_and_iterations(flag, window):
    assert parse_command_line("PartOne", ["--profile", flag])[0].profile == window


def test_help_fits_on_two_screens_and_ends_with_examples(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    words = _parser("PartTwo").format_help()
    assert len(words.splitlines()) <= 2 * SCREEN
    assert "examples:" in words[-800:]


def test_every_flag_has_help():
    for action in _parser("PartTwo")._actions:
        assert action.help, action.option_strings
