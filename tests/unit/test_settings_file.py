"""A file of settings is a command line: what it may hold, what flags and other parts make of it.

Mutations that turn this red: let the file override flags; take over output_dir from a record; keep
all strategies, or auto:FILE, in each one's record; drop _without_defaults; check no kinds; let rank
pass; switches that are store_true; pass over a switch that is false.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.world import World
from common.options.command_line import parse_command_line
from common.options.settings_file import RAN_ON
from common.options.workloads import WORKLOADS
from common.run.run_folder import keep_settings
from common.settings.resume import Resume
from common.settings.settings import Settings
from common.settings.types import SyncChoice
from tests.facts import says

TOML = """
# a comment
workload = "digits-vgg11"
batch-size = 32
learning_rate = 0.05
tta = true
dry_run = false
sync = ["gather-scatter", "local-sgd:9"]
validation = 0.1
checkpoint_every = "2min"
output_dir = "outputs/mine"
"""
FLAGS = ["--workload", "digits-vgg11", "--batch-size", "32", "--learning-rate", "0.05", "--tta",
         "--sync", "gather-scatter,local-sgd:9", "--validation", "0.1", "--checkpoint-every",
         "2min", "--output-dir", "outputs/mine"]

MIRRORED = """
from common.options.workloads import Workload
TASK = Workload("task", print, print, defaults={"tta": True})
"""


def written(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def told(part: str, path: Path, *flags: str) -> Settings:
    return parse_command_line(part, ["--settings", str(path), *flags])[0]


def record(folder: Path, part: str, strategy: str, *flags: str) -> Path:
    """The settings.json of a run of `part` with these flags."""
    settings, _ = parse_command_line(part, flags)
    name = f"{part}/{strategy}" if strategy else part
    keep_settings(SimpleNamespace(
        name=name, folder=folder, settings=settings,
        checkpoints=SimpleNamespace(constants={"data": "d", RAN_ON: {"threads": 2}}),
        node=Node(World(), torch.device("cpu"), threads=2)))
    return folder / "settings.json"


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="tomllib is of Python 3.11")
def test_a_file_is_the_same_as_its_flags_and_flags_override_it(tmp_path):
    path = written(tmp_path, TOML)
    assert told("PartTwo", path) == parse_command_line("PartTwo", FLAGS)[0]
    assert told("PartTwo", path, "--batch-size", "8", "--sync", "all-reduce") == replace(
        told("PartTwo", path), batch_size=8, sync=(SyncChoice("all-reduce"),))


def test_a_flag_switches_off_what_a_file_switches_on(tmp_path):
    path = written(tmp_path, '{"tta": true, "dry_run": true}', "on.json")
    for part in ("PartOne", "PartTwo", "PartThree"):
        found = told(part, path, "--no-tta")
        assert (found.tta, found.dry_run) == (False, True)
        assert not told(part, path, "--no-dry-run").dry_run
    again = record(tmp_path, "PartOne", "", "--tta")
    assert told("PartOne", again).tta and not told("PartOne", again, "--no-tta").tta


def test_a_file_switches_off_what_a_workload_switches_on(tmp_path):
    task = f"{written(tmp_path, MIRRORED, 'task.py')}:TASK"
    path = written(tmp_path, json.dumps({"workload": task, "tta": False}), "off.json")
    assert parse_command_line("PartOne", ["--workload", task])[0].tta
    assert not told("PartOne", path).tta


def test_json_by_hand_serves_too_and_is_no_record(tmp_path):
    path = written(tmp_path, '{"output_dir": "mine", "threads": null, "epochs": 2}', "a.json")
    found = told("PartOne", path)
    assert (found.output_dir, found.threads, found.epochs) == (Path("mine"), None, 2)


@pytest.mark.parametrize("text, facts", [
    ('{"lr": 0.1}', ["--lr", "--learning-rate"]), ('{"epoch": 1}', ["--epoch", "--epochs"]),
    ('{"amp": true}', ["--amp", "--precision bf16"]), ('{"data": {"seed": 1}}', ["[data]"]),
    ('{"epochs": "many"}', ["--epochs", "'many'"]), ('{"epochs": 1.5}', ["--epochs", "'1.5'"]),
    ('{"epochs": [1]}', ["--epochs", "[1]"]), ('{"epochs": true}', ["--epochs", "true"]),
    ('{"tta": 1}', ["--tta", 1, "true", "false"]), ('{"data_dir": 5}', ["--data-dir", 5]),
    ('{"sync": {"all-reduce": 1}}', ["--sync", '{"all-reduce": 1}']),
    ('{"sync": ["gossip"]}', ["gossip", "all-reduce"]), ('{"optimizer": "lion"}', ["lion"]),
    ('{"workload": "cifar-vgg11"}', ["cifar-vgg11", "cifar10-vgg11"]),
    ('{"learning_rate": NaN}', ["--learning-rate", "nan"]), ('{"help": 1}', ["--help"]),
    ('{"rank": 1}', ["rank", "--rank"]), ('{"master-ip": "h"}', ["master-ip", "--master-ip"]),
    ('{"settings": "a"}', ["settings", "--settings"]), ("[1]", ["settings"]),
    ("{", ["JSON", "Expecting"]), (b"\xff", ["JSON", "'utf-8'"])])
def test_what_cannot_be_meant_is_named_with_the_file(text, facts, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as raised:
        told("PartTwo", path)
    assert says(raised.value, path, *facts) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name, facts", [
    ("no.toml", ["No such file"]), ("run.yaml", [".toml", ".json"]), ("folder.json", []),
    ("bad.toml", ["TOML"])])
def test_files_that_are_none_of_settings_are_refused(name, facts, tmp_path):
    (tmp_path / "folder.json").mkdir()
    written(tmp_path, "epochs: 3", "bad.toml")
    with pytest.raises(UsageError) as raised:
        told("PartOne", tmp_path / name)
    assert says(raised.value, tmp_path / name, *facts)


MANY = ["--epochs", "3", "--schedule", "step:2:0.7:1.5", "--loader", "workers:4", "--profile",
        "2:7:stacks", "--validation", "0.15:3:0.01", "--virtual-nodes", "6", "--tta",
        "--max-iterations", "9", "--tracker", "wandb", "--checkpoint-every", "0"]


@pytest.mark.parametrize("flags", [MANY, ["--recipe", "record"], ["--resume", "my.pt:changed"],
                                   *(["--workload", name] for name in WORKLOADS)], ids=str)
@pytest.mark.parametrize("part, strategy", [("PartOne", ""), ("PartThree", ""),
                                            ("PartTwo", "all-reduce")])
def test_the_record_of_a_run_holds_all_that_repeats_it(part, strategy, flags, tmp_path):
    alone = ["--sync", "all-reduce"] if strategy else []
    wanted, _ = parse_command_line(part, flags + alone)
    assert told(part, record(tmp_path, part, strategy, *flags)) == wanted


def test_what_is_of_one_start_is_left_to_the_next(tmp_path):
    path = record(tmp_path, "PartThree", "", "--resume", "auto", "--output-dir", "elsewhere",
                  "--interface", "eth7", "--data-dir", "images")
    assert told("PartThree", path) == replace(Settings(), data_dir=Path("images"),
                                              sync=(SyncChoice("ddp"),))


def test_a_run_that_was_restarted_is_repeated_from_the_file_it_began_with(tmp_path):
    path = record(tmp_path, "PartThree", "", "--resume", "auto:my.pt:changed")
    assert told("PartThree", path).resume == Resume.read("my.pt:changed")
    resumed = told("PartThree", path, "--resume", "auto").resume
    assert resumed == Resume.read("auto:my.pt:changed")


def test_a_strategy_is_repeated_by_itself_and_by_other_parts(tmp_path):
    path = record(tmp_path, "PartTwo", "diloco", "--sync", "local-sgd,diloco:7", "--wire", "int8",
                  "--seed", "4")
    assert json.loads(path.read_text())[RAN_ON] == {
        "data": "d", "world_size": 1, "threads": 2}
    with pytest.raises(UsageError, match="--wire int8"):
        told("PartTwo", path, "--sync", "all-reduce")
    assert told("PartTwo", path).sync == (SyncChoice("diloco", 7),)
    assert told("PartOne", path) == replace(Settings(), seed=4, sync=(SyncChoice("none"),))
    other = record(tmp_path, "PartOne", "", "--seed", "4")
    assert told("PartTwo", other) == replace(Settings(), seed=4)


def test_another_workload_or_recipe_brings_its_own_numbers(tmp_path):
    own = ["--seed", "4", "--epochs", "2"]
    path = record(tmp_path, "PartOne", "", "--workload", "mnist-mlp", *own)
    for flags in ["--workload mnist-cnn", "--workload digits-vgg11 --recipe record"]:
        assert told("PartOne", path, *flags.split()) == parse_command_line(
            "PartOne", [*flags.split(), *own])[0]
