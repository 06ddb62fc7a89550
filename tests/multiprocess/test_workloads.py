"""Every workload, in every part, on 1, 2 and 4 ranks, learns the same; with dropout too.

VGG-11 has fewer channels here: a checkpoint of 148 MB a run would take longer than all the rest.
docs/proof.md has it whole.

Mutations that turn this red: let SampleDropout fall back to torch's dropout always; give
DropoutPlan.set_samples all ranks' layers the number 0 and the epoch 0; leave `indices` out of
micro_batches; take the rank into kept_units' key.
"""

import json
from pathlib import Path

import pytest
import torch

from common.core.events import read_events
from common.model import vgg11
from common.options.command_line import parse_command_line
from common.options.workloads import WORKLOADS
from studies.proof.strategies import STRATEGIES, alone
from studies.proof.trajectory import Problem, trajectory
from tests.facts import says
from tests.ranks import cluster, program, run_programs, run_ranks
from tests.small_files import digits_as_mnist, write_image_folder

PARTS = {"PartOne": alone, "gather-scatter": STRATEGIES["gather-scatter"],
         "all-reduce": STRATEGIES["all-reduce"], "PartThree": STRATEGIES["ddp"]}
SAMPLES, BATCH, STEPS = 22, 8, 3
THIN = ((8, True), (8, True), (8, True), (8, True), (512, True))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    digits_as_mnist(folder, train=30, test=10)
    write_image_folder(folder / "train", 15)
    write_image_folder(folder / "test", 3)
    return folder


def problem(workload: str, data_dir: Path, precision: str = "float64") -> Problem:
    settings, _ = parse_command_line("PartOne", [
        "--workload", workload, "--data-dir", str(data_dir), "--precision", precision,
        "--batch-size", str(BATCH), "--max-iterations", str(STEPS), "--threads", "1",
        "--batch-norm", "synchronised"])
    return Problem(settings, SAMPLES)


def learned(folder: str, parts: list[str],
            precision: str = "float64") -> dict[tuple[str, str], torch.Tensor]:
    """By (workload, part): the losses, and of each weight tensor its sum and its norm."""
    vgg11.LAYOUT = THIN  # type: ignore[assignment]
    found = {}
    for workload in WORKLOADS:
        for part in parts:
            told = trajectory(problem(workload, Path(folder), precision), PARTS[part])
            sums = [number for weight in told["weights"]
                    for number in (weight.sum(), weight.norm())]
            found[workload, part] = torch.cat([*told["loss"], torch.stack(sums)])
    return found


@pytest.fixture(scope="module")
def one_rank(data):
    return run_ranks(1, learned, str(data), ["PartOne"])[0]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_workload_learns_the_same_in_every_part(world_size, data, one_rank):
    for result in run_ranks(world_size, learned, str(data), list(PARTS)[1:], seconds=120):
        for (workload, part), numbers in result.items():
            assert torch.isfinite(numbers).all()
            gap = float((numbers - one_rank[workload, "PartOne"]).abs().max())
            assert gap < 1e-9, (workload, part, gap)


def test_every_workload_learns_nearly_the_same_in_half_precision(data, one_rank):
    half, = run_ranks(1, learned, str(data), ["PartOne"], "bf16")
    for (workload, part), numbers in half.items():
        exact = one_rank[workload, part]
        assert not torch.equal(numbers.double(), exact), workload
        assert torch.allclose(numbers[:STEPS].double(), exact[:STEPS], rtol=0.1), workload


def test_short_last_batches_and_uneven_shards_are_among_them(data):
    assert SAMPLES % BATCH == 6 and 6 % 4 != 0 and STEPS * BATCH > SAMPLES


def plant_thin() -> None:
    vgg11.LAYOUT = THIN  # type: ignore[assignment]


def test_the_literal_command_with_the_workloads_own_settings(data, tmp_path):
    flags = ["--workload", "mnist-cnn", "--data-dir", str(data), "--epochs", "2", "--batch-size",
             "10", "--threads", "1", "--output-dir", str(tmp_path / "out")]
    outcomes = run_programs(cluster("PartThree", 2, flags, tmp_path))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert says(outcomes[0].output, "adadelta", "step:1:0.7")
    folder = tmp_path / "out" / "PartThree"
    rates = [step["learning_rate"] for step in read_events(folder / "metrics_rank1.jsonl", "step")]
    assert rates == pytest.approx([1.0] * 3 + [0.7] * 3)
    report = json.loads((folder / "report.json").read_text())
    assert report["class_names"] == list("0123456789") and report["test_loss"] > 0


def test_a_folder_of_ones_own_images(tmp_path):
    write_image_folder(tmp_path / "images", 20, size=50)
    flags = ["--workload", "image-folder", "--data-dir", str(tmp_path / "images"), "--epochs", "1",
             "--batch-size", "16", "--output-dir", str(tmp_path / "out")]
    outcome, = run_programs([program("PartOne", flags, tmp_path, "rank0", before=plant_thin)])
    assert outcome.code == 0, outcome.output
    report = json.loads((tmp_path / "out" / "PartOne" / "report.json").read_text())
    assert report["class_names"] == ["ant", "bee"]
    assert sum(map(sum, report["confusion_matrix"])) == 8  # a fifth of 40
