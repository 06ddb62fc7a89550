"""The record recipe keeps the promise: one trajectory on any number of ranks, resumed bit for bit.

Mutations that turn this red: draw the flips by epoch alone; evaluate with the training criterion.
"""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from common.run import checkpoint_file
from tests.runs import FOLDERS, Case, end_of, launch, same_bits
from tests.small import SmallNet
from tests.workload import plant

KILLED = -9
RECORD = ["--recipe", "record", "--batch-size", "10", "--epochs", "2", "--learning-rate", "0.05"]
EXACT = [*RECORD, "--precision", "float64", "--batch-norm", "synchronised", "--tta",
         "--validation", "0"]
FIGURES = ("test_loss", "test_accuracy", "mirrored_test_accuracy")


def checkpoint_of(case: Case, folder: Path) -> dict:
    return checkpoint_file.read(folder / FOLDERS[case.run] / "checkpoints" / "Epoch_2.pt")


def largest_gap(ours: dict, theirs: dict) -> float:
    assert ours.keys() == theirs.keys() and ours
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def figures(case: Case, folder: Path) -> list[float]:
    summary = json.loads((folder / FOLDERS[case.run] / "summary.json").read_text())
    return [summary[name] for name in FIGURES]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory) -> tuple[dict, list[float]]:
    folder, case = tmp_path_factory.mktemp("one"), Case("PartOne", 1, "memory", 4, 0)
    launch(case, folder, "no", more=EXACT)
    return checkpoint_of(case, folder), figures(case, folder)


@pytest.mark.parametrize("case", [Case("all-reduce", 3, "memory", 4, 0),
                                  Case("PartThree", 2, "workers", 4, 0)], ids=lambda case: case.run)
def test_any_number_of_ranks_learns_and_evaluates_the_same(case, one_rank, tmp_path):
    launch(case, tmp_path, "no", more=EXACT)
    contents, (alone, told) = checkpoint_of(case, tmp_path), one_rank
    assert largest_gap(contents["model_state_dict"], alone["model_state_dict"]) < 1e-12
    assert figures(case, tmp_path) == pytest.approx(told, abs=1e-12)


@pytest.mark.parametrize("case", [Case("PartOne", 1, "memory", 4, 6),
                                  Case("all-reduce", 3, "memory", 4, 14)],
                         ids=lambda case: case.run)
def test_a_killed_run_resumes_bit_for_bit(case, tmp_path):
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    launch(case, folders[0], "no", more=RECORD)
    launch(case, folders[1], "no", before=partial(plant, kill_at=case.kill_at), code=KILLED,
           more=RECORD)
    launch(case, folders[1], "auto", more=RECORD)
    assert same_bits(*(end_of(case, folder) for folder in folders))
    assert figures(case, folders[0]) == figures(case, folders[1])


def test_what_is_reported_is_measured_on_true_targets(one_rank):
    """Evaluated once more by hand, from the checkpoint."""
    from tests.small import small_dataset

    contents, told = one_rank
    model = SmallNet(torch.nn.BatchNorm2d).double().eval()
    model.load_state_dict(contents["model_state_dict"])
    dataset = small_dataset(31)
    images = ((torch.from_numpy(dataset.inputs).double() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
    targets = torch.from_numpy(dataset.targets)
    with torch.no_grad():
        scores, mirrored = model(images), model(images.flip(3))
    by_hand = [float(torch.nn.functional.cross_entropy(scores, targets)),
               float((scores.argmax(1) == targets).double().mean()),
               float(((scores + mirrored).argmax(1) == targets).double().mean())]
    assert told == pytest.approx(by_hand, abs=1e-12)
