"""A resumed run keeps the choices that it made at its start.

Mutations that turn this red: return the settings' own from prepare_runs; put
what was found into the settings of the run; believe it for another model; let _convolutions believe
any type; leave out `use_threads`; peek without `except`; `before` left out of use_arithmetic;
NATIVE for PORTABLE where nothing is said; another rank's reason disregarded.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from common.arithmetic import choice
from common.arithmetic.choice import POOLED_LAST, algorithms, use_fast_convolutions
from common.arithmetic.pooling import pooling as pooling_of
from common.arithmetic.products import arithmetic
from common.cluster.node import Node
from common.core.events import read_events
from common.core.failures import UsageError
from common.core.precision import Precision
from common.core.progress import Position
from common.core.world import World
from common.data.datasets import load_digits
from common.model.vgg11 import VGG11
from common.run import checkpoint_file, kept_arithmetic
from common.run.kept_arithmetic import prepare_runs
from common.settings.resume import AUTO, Resume
from common.settings.settings import Settings
from common.setup import create_model
from tests.facts import says
from tests.ranks import run_ranks
from tests.runs import FOLDERS, Case, end_of, launch, same_bits
from tests.workload import plant

KILLED = -9
SETTINGS = Settings(workload="digits-vgg11", batch_size=4, learning_rate=0.1, weight_decay=0.0)
IMAGE = (3, 32, 32)


def node(rank: int = 0, size: int = 1) -> Node:
    return Node(World(rank=rank, size=size), torch.device("cpu"), threads=1)


def test_the_convolutions_of_the_run_to_resume_are_taken():
    names = "library library winograd-2 library winograd-4 library toeplitz winograd-2"
    model = VGG11()
    use_fast_convolutions(model, IMAGE, 4, Precision(), names)
    assert algorithms(model) == names


@pytest.mark.parametrize("told", [
    "winograd-4", "library " * 8 + "library", "x " * 8, "library " * 7 + "winograd-4"])
def test_what_does_not_suit_the_model_is_chosen_anew(told, monkeypatch):
    model = VGG11()
    monkeypatch.setattr(choice, "by_rule", lambda shape: shape.candidates()[0])
    use_fast_convolutions(model, IMAGE, 4, Precision(), told)
    assert algorithms(model).split()[2:] == ["winograd-4"] * 4 + ["toeplitz"] * 2


def save(path: Path, ran_on: object) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpoint_file.write(path, checkpoint_file.pack(model, optimizer, Position(), 0.0,
                                           ran_on=ran_on))


@pytest.mark.parametrize("ran_on", [None, [], "x", {}, {"convolutions": 3}])
def test_a_strange_checkpoint_decides_nothing(ran_on, tmp_path):
    save(tmp_path / "PartOne" / "checkpoints" / "Epoch_1.pt", ran_on)
    open_settings = replace(SETTINGS, output_dir=tmp_path, resume=AUTO)
    assert prepare_runs("PartOne", open_settings, node()) == "auto"


def test_the_newest_checkpoint_that_can_be_read_decides(tmp_path):
    folder = tmp_path / "PartTwo" / "all-reduce" / "checkpoints"
    save(folder / "Epoch_1.pt", {"convolutions": "one"})
    save(folder / "Epoch_2.pt", {"convolutions": "two"})
    (folder / "Epoch_3.pt").write_bytes(b"cut short")
    left_open = replace(SETTINGS, output_dir=tmp_path)
    found = [prepare_runs("PartTwo", replace(left_open, resume=Resume.read(resume)), node())
             for resume in ("auto", str(folder / "Epoch_1.pt"), "no", "replace")]
    assert found == ["two", "one", "auto", "auto"]
    told = replace(left_open, resume=AUTO, convolutions="library")
    assert prepare_runs("PartTwo", told, node()) == "library"


@pytest.mark.parametrize("pooling, kept", [("last", POOLED_LAST), ("first", "library"),
                                           (None, "library")])
def test_a_run_begun_with_the_library_goes_on_pooling_last(pooling, kept, tmp_path):
    save(tmp_path / "PartOne" / "checkpoints" / "Epoch_1.pt",
         {"convolutions": "library", "pooling": pooling})
    resumed = replace(SETTINGS, output_dir=tmp_path, resume=AUTO)
    assert prepare_runs("PartOne", resumed, node()) == kept
    model = create_model(SETTINGS, load_digits("test"), node(), kept)
    assert pooling_of(model) == ("last" if kept == POOLED_LAST else "first")


@pytest.mark.parametrize("ran_on, asked_for, kept", [
    (None, "auto", "portable"), ({"arithmetic": "native"}, "auto", "native"),
    ({"arithmetic": "portable, but for: elu"}, "auto", "portable"),
    ({"convolutions": "library"}, "auto", "native"), ({"arithmetic": 3}, "auto", "native"),
    ({"arithmetic": "native"}, "portable", "portable"), (None, "native", "native")])
def test_a_run_keeps_its_arithmetic(ran_on, asked_for, kept, tmp_path):
    if ran_on is not None:
        save(tmp_path / "PartOne" / "checkpoints" / "Epoch_1.pt", ran_on)
    prepare_runs("PartOne", replace(SETTINGS, output_dir=tmp_path, resume=AUTO,
                                    arithmetic=asked_for), node())
    assert arithmetic() == kept


@pytest.mark.parametrize(("asked_for", "threads", "kept"), [
    ("auto", None, 1), ("auto", 3, 3), ("portable", None, 2)])
def test_a_native_run_on_virtual_nodes_goes_on_with_one_thread(asked_for, threads, kept, tmp_path):
    save(tmp_path / "PartOne" / "checkpoints" / "Epoch_1.pt", {"arithmetic": "native"})
    before, mine = torch.get_num_threads(), node()
    mine.threads = 2
    try:
        prepare_runs("PartOne", replace(
            SETTINGS, output_dir=tmp_path, resume=AUTO, virtual_nodes=4, arithmetic=asked_for,
            threads=threads), mine)
        assert mine.threads == kept and (kept == 2 or torch.get_num_threads() == kept)
    finally:
        torch.set_num_threads(before)


def test_other_precisions_are_native_unless_asked(tmp_path):
    bf16 = replace(SETTINGS, output_dir=tmp_path, precision="bf16")
    for asked_for, chosen in (("auto", "native"), ("portable", "portable")):
        prepare_runs("PartOne", replace(bf16, arithmetic=asked_for), node())
        assert arithmetic() == chosen


def prepared_where_one_cannot_compile(asked_for: str, folder: Path) -> str:
    reason = "there is no compiler" if torch.distributed.get_rank() == 1 else ""
    kept_arithmetic.why_not = lambda: reason
    try:
        prepare_runs("PartTwo", replace(SETTINGS, output_dir=folder, arithmetic=asked_for),
                     node(torch.distributed.get_rank(), 2))
    except UsageError as error:
        return str(error)
    return arithmetic()


def test_all_ranks_are_native_if_one_cannot_compile(tmp_path):
    assert run_ranks(2, prepared_where_one_cannot_compile, "auto", tmp_path) == ["native"] * 2
    refused = run_ranks(2, prepared_where_one_cannot_compile, "portable", tmp_path)
    assert all(says(each, "--arithmetic", "native") for each in refused)


def plant_choices(convolution: str, kill_at: int | None = None) -> None:
    """The small workload on a processor with that algorithm by rule."""
    plant(kill_at)
    choice.FEWEST_CHANNELS = 1
    choice.by_rule = lambda shape: convolution


@pytest.mark.parametrize(("run", "size"), [("PartOne", 1), ("PartThree", 3)])
def test_a_resumed_run_keeps_its_convolutions_and_goes_on_bit_for_bit(run, size, tmp_path):
    case = Case(run, size, "memory", 4, 6)
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    first, second = partial(plant_choices, "winograd-2"), partial(plant_choices, "library")
    launch(case, folders[0], "no", before=first)
    launch(case, folders[1], "no", before=partial(first, kill_at=6), code=KILLED)
    launch(case, folders[1], "auto", before=second)
    log = folders[1] / FOLDERS[case.run]
    begun = [event["ran_on"] for event in read_events(log / "metrics_rank0.jsonl", "start")]
    assert begun[0] == begun[1] and "winograd-2" in begun[0]["convolutions"]
    asked = checkpoint_file.read(log / "checkpoints" / "Epoch_2.pt")["settings"]
    assert asked["convolutions"] == "auto"
    assert "(bit-exact: yes)" in (log / "logs_rank0.txt").read_text()
    assert same_bits(*(end_of(case, folder) for folder in folders))
