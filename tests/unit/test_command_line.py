"""Flags: every mistake is one sentence and exit code 2, before anything heavy is imported.

Mutations that turn this red: leave world.attempt out of parse_command_line; drop `combine` from the
row of --resume, from FlagParser, or from what a file says; drop `accepts` in Resume.then; take any
word for a checkpoint in Resume.parse; look at LARGEST before `accept` in _number.
"""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.core.failures import UsageError
from common.options.command_line import PARTS, _parser, parse_command_line
from common.options.workloads import WORKLOADS
from common.settings.learning import OPTIMIZERS
from common.settings.resume import Resume
from common.settings.settings import Launch, Settings
from common.settings.types import (
    SCHEDULES,
    Interval,
    LoaderChoice,
    ScheduleChoice,
    SyncChoice,
    Validation,
)
from tests.facts import says
from tests.ranks import ROOT


def test_defaults_are_the_assignments_numbers():
    settings, world = parse_command_line("PartOne", [])
    assert (settings.batch_size, settings.learning_rate, settings.momentum,
            settings.weight_decay, settings.log_every) == (256, 0.1, 0.9, 1e-4, 20)
    assert settings.workload == "cifar10-vgg11" and world.size == 1


def names(*flags: str) -> tuple[str, ...]:
    return tuple(choice.name for choice in parse_command_line("PartTwo", flags)[0].sync)


def test_part_two_runs_both_tasks_unless_told():
    assert names() == ("gather-scatter", "all-reduce")
    assert names("--sync", "all-reduce") == ("all-reduce",)
    for part, alone in (("PartOne", "none"), ("PartThree", "ddp")):
        assert parse_command_line(part, [])[0].sync == (SyncChoice(alone),)


def test_local_strategies_have_the_papers_numbers_unless_told():
    told, _ = parse_command_line("PartTwo", ["--sync", "diloco,local-sgd:9,all-reduce"])
    assert told.sync == (SyncChoice("diloco", 50, 0.7, 0.9), SyncChoice("local-sgd", 9),
                         SyncChoice("all-reduce"))
    assert [choice.name for choice in told.local_sync] == ["diloco", "local-sgd"]
    assert told.trajectory()["sync"] == ["diloco", "local-sgd:9"]
    assert "sync" not in parse_command_line("PartTwo", [])[0].trajectory()


@pytest.mark.parametrize("flag, text, value", [
    ("sync", "diloco:7:0.5:0.1", (SyncChoice("diloco", 7, 0.5, 0.1),)),
    ("schedule", "step:2:0.7", ScheduleChoice("step", epochs=2, factor=0.7)),
    ("schedule", "step:2:0.7:1.5", ScheduleChoice("step", 1.5, 2, 0.7)),
    ("schedule", "cosine:0.333333333", ScheduleChoice("cosine", 0.333333333)),
    ("loader", "workers:4", LoaderChoice("workers", 4)),
    ("loader", "memory", LoaderChoice("memory")),
    ("checkpoint_every", "100", Interval(100)), ("checkpoint_every", "2.5min", Interval(0, 2.5)),
    ("checkpoint_every", "0", Interval()), ("validation", "0.1", Validation(0.1)),
    ("validation", "0.15:3:0.01", Validation(0.15, 3, 0.01)), ("profile", "1:7", (1, 7, False)),
    ("profile", "1:5:stacks", (1, 5, True))])
def test_a_name_and_its_numbers_are_read_and_written_alike(flag, text, value):
    settings, _ = parse_command_line("PartTwo", [f"--{flag.replace('_', '-')}", text])
    assert getattr(settings, flag) == value
    written = settings.as_json()[flag]
    assert written == ([text] if flag == "sync" else text)


AGAIN = [("no", "auto"), ("replace", "auto"), ("auto", "auto"), ("auto:changed", "auto:changed"),
         ("A.pt", "auto:A.pt"), ("A.pt:changed", "auto:A.pt:changed"),
         ("auto:A.pt:changed", "auto:A.pt:changed")]


@pytest.mark.parametrize("before, after", AGAIN)
@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "supervise", "settings"])
def test_a_restart_goes_on_with_the_run_that_the_command_began(launcher, before, after, tmp_path,
                                                               monkeypatch):
    """supervise.sh adds --resume auto to its command; torchrun and SLURM count the restarts."""
    variables = {"torchrun": {"RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": 1},
                 "slurm": {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_STEP_ID": 0,
                           "SLURM_NODELIST": "n1", "SLURM_RESTART_COUNT": 1}}
    for name, value in variables.get(launcher, {}).items():
        monkeypatch.setenv(name, str(value))
    flags = ["--resume", before] + ["--resume", "auto"] * (launcher == "supervise")
    if launcher == "settings":
        (tmp_path / "run.json").write_text(json.dumps({"resume": before}))
        flags = ["--settings", str(tmp_path / "run.json"), "--resume", "auto"]
    assert parse_command_line("PartTwo", flags)[0].resume == Resume.read(after)


@pytest.mark.parametrize("said, meant", [
    (["auto", "A.pt"], "A.pt"), (["A.pt", "replace"], "replace"), (["A.pt", "B.pt"], "B.pt"),
    (["A.pt", "auto:changed"], "auto:A.pt:changed"), (["A.pt", "auto:B.pt"], "auto:B.pt")])
def test_of_two_resumes_the_last_counts_but_auto_goes_on(said, meant):
    flags = [word for how in said for word in ("--resume", how)]
    assert parse_command_line("PartTwo", flags)[0].resume == Resume.read(meant)


def test_every_row_fits_its_names():
    """A row's names are checked by nobody before a run looks them up."""
    for name, row in WORKLOADS.items():
        settings, _ = parse_command_line("PartOne", ["--workload", name])
        assert settings.optimizer in OPTIMIZERS and settings.schedule.name in SCHEDULES
        assert row.criterion in ("cross-entropy", "negative-log-likelihood")


def test_the_tutorials_numbers():
    numbers = {name: parse_command_line("PartOne", ["--workload", name])[0] for name in WORKLOADS}
    mlp, cnn, spiral = (numbers[name] for name in ("mnist-mlp", "mnist-cnn", "spiral-mlp"))
    assert (mlp.batch_size, mlp.epochs, mlp.optimizer, mlp.log_every) == (32, 5, "adam", 100)
    assert (cnn.batch_size, cnn.epochs, cnn.optimizer, cnn.learning_rate) == (64, 14, "adadelta", 1)
    assert cnn.schedule == ScheduleChoice("step", epochs=1, factor=0.7)
    assert WORKLOADS["mnist-cnn"].criterion == "negative-log-likelihood"
    assert (spiral.epochs, spiral.optimizer) == (50, "adam")
    assert spiral.validation == Validation(0.15 / 0.85, 3, 0.01)
    assert spiral.batch_size == 4 * 32


def test_short_cluster_flags():
    _, world = parse_command_line("PartThree", ["-M", "10.0.0.1", "-N", "4", "-R", "3"])
    assert (world.rank, world.size, world.master_address) == (3, 4, "10.0.0.1")


def test_a_workloads_row_gives_the_defaults_and_flags_overrule_it():
    settings, _ = parse_command_line("PartOne", ["--workload", "digits-vgg11", "--epochs", "9"])
    assert settings.batch_size == 64 and settings.epochs == 9


@pytest.mark.parametrize("flags, facts", [
    (["--epochs", "0"], ["--epochs", 0, 1]),
    (["--timeout", "1e15"], ["--timeout", "1e15", "1,000,000"]),
    (["--threads", "100000"], ["--threads", 100000, 1, "1,024"]),
    (["--learning-rate", "nan"], ["--learning-rate", "nan", 0]),
    (["--learning-rate", "1e30"], ["--learning-rate", "1e30", "4.6e+18"]),
    (["--seed", "9" * 30], ["--seed", "9" * 30, "4.6e+18"]),
    (["--learning-rate=-1e30"], ["--learning-rate", "-1e30", 0]),
    (["--resume", "atuo"], ["--resume", "atuo", "no", "auto", "replace"]),
    (["--resume", "auto:chnaged"], ["--resume", "chnaged", "no", "auto", "replace"]),
    (["--resume", "latest:changed"], ["--resume", "latest", "no", "auto", "replace"]),
    (["--accumulate", "257"], ["--accumulate 257", 256]),
    (["-M", "h", "-N", "4", "-R", "0", "--accumulate", "65"], ["--accumulate 65", 64]),
    (["--momentum", "1"], ["--momentum", 1]),
    (["--batch-size", "3.5"], ["--batch-size", 3.5]),
    (["--workload", "imagenet"], ["imagenet", "digits-vgg11"]),
    (["--precision", "fp8"], ["fp8", "bf16"]),
    (["--sync", "gossip"], ["gossip", "all-reduce"]),
    (["--sync", "all-reduce,all-reduce"], ["--sync", "all-reduce"]),
    (["--optimizer", "lion"], ["lion", "adadelta"]),
    (["--schedule", "exponential"], ["exponential", "one-cycle"]),
    (["--accumulate", "0"], ["--accumulate", 0]),
    (["--validation", "0.1:3:x"], ["--validation", "'x'"]),
    (["--validation", "0.1:0"], ["--validation", "'0'", 1]),
    (["--validation", "1"], ["--validation", "'1'"]),
    (["--validation", "0.1:3:1:4"], ["--validation", "0.1:3:1:4", "3"]),
    (["--early-stopping", "3"], ["--early-stopping", "--validation 0.1:3:0.01"]),
    (["--num-workers", "3"], ["--num-workers", "--loader workers:N"]),
    (["--checkpoint-minutes", "3"], ["--checkpoint-minutes", "--checkpoint-every 10min"]),
    (["--gamma", "0.7"], ["--gamma", "--schedule step:1:0.7"]),
    (["--sync-every", "50"], ["--sync-every", "--sync local-sgd:50"]),
    (["--accept-changes"], ["--accept-changes", "--resume auto:changed"]),
    (["--comm-hook", "bf16"], ["--comm-hook", "--wire"]),
    (["--schedule", "cosine:1:2"], ["--schedule", "cosine:1:2", 1]),
    (["--loader", "workers:-1"], ["--loader", -1]),
    (["--checkpoint-every", "10sec"], ["--checkpoint-every", "10sec", "10min"]),
    (["--workload", "mnist-cnn", "--label-smoothing", "0.1"],
     ["--label-smoothing", "cross-entropy", "--workload mnist-cnn"]),
    (["--workload", "mnist-mlp", "--init", "whitened"],
     ["--init whitened", "--workload mnist-mlp"]),
    (["--workload", "spiral-mlp", "--optimizer", "muon"],
     ["--optimizer muon", "--workload spiral-mlp"]),
    (["--batch-norm", "synchronised", "--accumulate", "2"],
     ["--batch-norm synchronised", "--accumulate 2"]),
    (["--profile", "3:1"], ["--profile 3", 1]),
    (["--profile", "4", "--epochs", "9", "--max-iterations", "3"],
     ["--profile 4", "--max-iterations 3"]),
    (["--profile", "1:2:stack"], ["--profile", "1:2:stack", 2]),
    (["--tracker", "my_tracker.txt:Csv"], ["--tracker", "FILE.py:NAME"]),
    (["--no-such-flag"], ["--no-such-flag"]),
    (["--wire", "bf16", "--sync", "all-reduce-per-tensor"], ["--wire bf16", "-per-tensor"]),
    (["--sync", "local-sgd:0"], ["--sync", "'0'", 1]),
    (["--sync", "all-reduce:5"], ["--sync", "all-reduce:5", 0]),
    (["--sync", "local-sgd:5,local-sgd:6"], ["--sync", "local-sgd"]),
    (["--sync", "local-sgd:5:0.7"], ["--sync", "local-sgd:5:0.7", 1]),
    (["--sync", "diloco:5:0"], ["--sync", "'0'"]),
    (["--sync", "local-sgd,all-reduce", "--wire", "int4"],
     ["--wire int4", "all-reduce", "bf16", "fp16"]),
    (["--wire", "int8"], ["--wire int8", "local-sgd", "diloco", "gather-scatter"]),
    (["--sync", "diloco", "--batch-norm", "synchronised"],
     ["--batch-norm synchronised", "--sync diloco"]),
    (["--precision", "fp16", "--sync", "all-reduce,local-sgd"],
     ["--precision fp16", "--sync local-sgd"]),
    (["--precision", "fp16", "--sync", "cross-step-all-reduce"],
     ["--precision fp16", "--sync cross-step-all-reduce", "--sync overlapped-all-reduce"]),
    (["--precision", "fp16", "--wire", "bf16"],
     ["--precision fp16", "--wire float32", "--wire bf16"]),
    (["--epoch", "3"], ["--epoch", "--epochs"]),
    (["--learning_rate", "1"], ["--learning_rate", "--learning-rate"]),
    (["--profile", "1:0"], ["--profile", "'0'", 1]),
    (["two\nlines"], ["two lines"]),
    (["-N", "4", "-R", "0"], ["--master-ip"]),
    (["-M", "h", "-N", "4", "-R", "4"], ["rank 4", 0, 3]),
    (["-M", "h", "-N", "9", "-R", "0", "--batch-size", "8"], ["--batch-size", 8, 9]),
])
def test_mistakes_are_named(flags, facts):
    assert says(mistake(*flags), *facts)


def mistake(*flags: str) -> str:
    """The one line in which Part Two refuses these flags."""
    with pytest.raises(UsageError) as raised:
        parse_command_line("PartTwo", flags)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_one_process_sends_no_gradients():
    with pytest.raises(UsageError) as raised:
        parse_command_line("PartThree", ["--wire", "bf16", "--parallel", "data-parallel"])
    assert says(raised.value, "--wire bf16", "--parallel ddp")


FLAGS = [flag for action in _parser("PartTwo")._actions for flag in action.option_strings]
COMMAND_LINES = st.lists(st.text(max_size=8) | st.sampled_from(FLAGS) | st.sampled_from(
    ["1", "-1", "0", "1e9", "nan", "auto", "all-reduce", "10.0.0.1", "digits-vgg11", "3.5", ""]),
    max_size=8)


def check_command_line(arguments: list[str]) -> None:
    if {"-h", "--help", "--help-all"} & set(arguments):
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


@pytest.mark.parametrize("flag, window", [
    ("2", (2, 5, False)), ("3:40", (3, 40, False)), ("1:2:stacks", (1, 2, True)),
    ("2:stacks", (2, 5, True))])
def test_profile_takes_an_epoch_and_iterations(flag, window):
    assert parse_command_line("PartOne", ["--epochs", "3", "--profile", flag])[0].profile == window


@pytest.mark.parametrize("part", PARTS)
def test_help_names_the_rest(part, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "--help-all" in _parser(part).format_help().splitlines()[-1]
    parser = _parser(part)
    parser.show_all()
    everything = parser.format_help()
    assert all(flag in everything for flag in parser.flags)


def test_every_flag_has_help():
    assert all(row.help for row in {**Launch.rows(), **Settings.rows()}.values())
