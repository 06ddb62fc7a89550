"""What a run has settled at its start a resumed run keeps; and what is measured is sensible.

Mutations that turn this red: measure in settle_choices whatever `before` says; leave out
`_as_before`; believe it for another model; take the square out of best_bucket_mb, or the rounding
to powers of two; leave out a clamp; let KEPT believe any type; measure on one rank; measure for a
single rank; peek without `except`.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from common.cluster.process_group import Node
from common.core.events import read_events
from common.core.precision import Precision
from common.core.progress import Position
from common.core.settings import Settings
from common.core.world import World
from common.model.convolutions import algorithms, use_fast_convolutions
from common.model.vgg11 import VGG11
from common.run import checkpoint, choices
from common.run.choices import best_bucket_mb, settle_choices
from tests.ranks import run_ranks
from tests.runs import FOLDERS, Case, end_of, launch, same_bits
from tests.workload import plant

KILLED = -9
SETTINGS = Settings("digits-vgg11", Path(), Path("outputs"), 1, 4, 0.1, 0.9, 0.0)
IMAGE = (3, 32, 32)


def node(rank: int = 0, size: int = 1) -> Node:
    return Node(World(rank=rank, size=size), torch.device("cpu"), threads=1)


def test_bucket_size_is_where_waiting_and_latency_cost_the_same():
    megabit = 8e-6
    # sqrt(latency * bytes / seconds per byte): 1.06, 2.7 and 0.34 MB, to the next powers of two
    assert best_bucket_mb(0.5e-3, megabit / 600, 30_000_000) == 1.0
    assert best_bucket_mb(1e-3, megabit / 2000, 30_000_000) == 2.0
    assert best_bucket_mb(0.5e-3, megabit / 62, 30_000_000) == 0.25


def test_noise_of_a_third_rarely_changes_the_bucket_size():
    sizes = {best_bucket_mb(0.5e-3 * factor, 8e-6 / 600, 30_000_000)
             for factor in (0.7, 1.0, 1.3)}
    assert sizes == {1.0}


def test_buckets_stay_within_bounds():
    assert best_bucket_mb(1.0, 1e-9, 30_000_000) == choices.MOST_BUCKET_MB
    assert best_bucket_mb(1e-9, 1e-6, 30_000_000) == choices.LEAST_BUCKET_MB


def measured_size() -> tuple[float, list[int]]:
    """What a rank of two chooses, and asks for, when the other one is slow to begin."""
    asked, rank = [], torch.distributed.get_rank()

    def seconds(size: int, device: torch.device) -> float:
        asked.append(size)
        mine = torch.tensor([(1e-6, 1e-2)[rank] + size * 1e-9], dtype=torch.float64)
        torch.distributed.all_reduce(mine, op=torch.distributed.ReduceOp.MAX)
        return mine.item()

    choices.median_seconds = seconds
    settled = settle_choices("PartThree", replace(SETTINGS, bucket_mb=0.0), node(rank, 2))
    return settled.bucket_mb, asked


def test_all_ranks_measure_and_choose_alike():
    (one, asked), (other, _) = run_ranks(2, measured_size)
    assert one == other == choices.MOST_BUCKET_MB
    assert asked == [choices.SMALL_BYTES, choices.LARGE_BYTES]


def really_measured_size() -> float:
    settings = replace(SETTINGS, bucket_mb=0.0)
    return settle_choices("PartThree", settings, node(torch.distributed.get_rank(), 2)).bucket_mb


def test_two_ranks_can_measure():
    one, other = run_ranks(2, really_measured_size)
    assert one == other and choices.LEAST_BUCKET_MB <= one <= choices.MOST_BUCKET_MB


def test_a_size_that_was_given_and_a_single_rank_are_left_alone(monkeypatch):
    monkeypatch.setattr(choices, "median_seconds", None)
    assert settle_choices("PartTwo", replace(SETTINGS, bucket_mb=3.0), node()).bucket_mb == 3.0
    assert settle_choices("PartTwo", replace(SETTINGS, bucket_mb=0.0), node()).bucket_mb == 1.0


def test_the_convolutions_of_the_run_to_resume_are_taken():
    names = "library library winograd-2 library winograd-4 library toeplitz winograd-2"
    model = VGG11()
    use_fast_convolutions(model, IMAGE, 4, Precision(), names)
    assert algorithms(model) == names


@pytest.mark.parametrize("told", [
    "winograd-4", "library " * 8 + "library", "x " * 8, "library " * 7 + "winograd-4"])
def test_what_does_not_suit_the_model_is_chosen_anew(told):
    model = VGG11()
    use_fast_convolutions(model, IMAGE, 4, Precision(), told,
                          lambda shape: shape.candidates()[0])
    assert algorithms(model).split()[2:] == ["winograd-4"] * 4 + ["toeplitz"] * 2


def save(path: Path, ran_on: object) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpoint.write(path, checkpoint.pack(model, optimizer, Position(), 0.0,
                                           ran_on=ran_on))


@pytest.mark.parametrize("ran_on", [
    None, [], "x", {}, {"convolutions": 3, "bucket_mb": "x"}, {"bucket_mb": 3, "more": [1]}])
def test_a_strange_checkpoint_decides_nothing(ran_on, tmp_path):
    save(tmp_path / "PartOne" / "checkpoints" / "Epoch_1.pt", ran_on)
    open_settings = replace(SETTINGS, output_dir=tmp_path, resume="auto", bucket_mb=0.0)
    assert settle_choices("PartOne", open_settings, node()).bucket_mb == 1.0


def test_the_newest_checkpoint_that_can_be_read_decides(tmp_path):
    folder = tmp_path / "PartTwo" / "all-reduce" / "checkpoints"
    save(folder / "Epoch_1.pt", {"convolutions": "one", "bucket_mb": 4.0})
    save(folder / "Epoch_2.pt", {"convolutions": "two", "bucket_mb": 8.0})
    (folder / "Epoch_3.pt").write_bytes(b"cut short")
    left_open = replace(SETTINGS, output_dir=tmp_path, bucket_mb=0.0)
    found = []
    for resume in ("auto", str(folder / "Epoch_1.pt"), "no", "replace"):
        settled = settle_choices("PartTwo", replace(left_open, resume=resume), node())
        found.append((settled.convolutions, settled.bucket_mb))
    assert found == [("two", 8.0), ("one", 4.0), ("auto", 1.0), ("auto", 1.0)]
    told = replace(left_open, resume="auto", convolutions="library", bucket_mb=2.0)
    assert settle_choices("PartTwo", told, node()) == told


def plant_choices(convolution: str, latency: float, kill_at: int | None = None) -> None:
    """The small workload on a processor with that algorithm by rule, and so slow a network."""
    from common import setup
    from common.model import convolutions

    plant(kill_at)
    convolutions.FEWEST_CHANNELS = 1
    setup.by_rule = lambda shape: convolution
    choices.LEAST_BUCKET_MB = 1e-9
    choices.median_seconds = lambda size, device: (
        latency + (size > choices.SMALL_BYTES) * size * 1e-9)


@pytest.mark.parametrize(("run", "size", "flags"), [
    ("PartOne", 1, []), ("overlapped-all-reduce", 3, ["--bucket-mb", "auto"]),
    ("PartThree", 3, ["--bucket-mb", "auto"])])
def test_a_resumed_run_measures_nothing_and_goes_on_bit_for_bit(run, size, flags, tmp_path):
    case = Case(run, size, "memory", 4, 6)
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    first, second = partial(plant_choices, "winograd-2", 1e-9), partial(plant_choices, "library", 1)
    launch(case, folders[0], "no", before=first, more=flags)
    launch(case, folders[1], "no", before=partial(first, kill_at=6), code=KILLED, more=flags)
    launch(case, folders[1], "auto", before=second, more=flags)
    log = folders[1] / FOLDERS[case.run]
    begun = [event["ran_on"] for event in read_events(log / "metrics_rank0.jsonl", "start")]
    assert begun[0] == begun[1] and "winograd-2" in begun[0]["convolutions"]
    assert not flags or begun[0]["bucket_mb"] < 1e-3
    assert "(bit-exact: yes)" in (log / "logs_rank0.txt").read_text()
    assert same_bits(*(end_of(case, folder) for folder in folders))
