"""scripts/evaluate.py: the run's own report on any number of ranks, pictures, an exported model.

Mutations that turn this red: print on every rank; read the file on every rank; load the test set
for pictures; export the model without its normalisation.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.facts import says
from tests.ranks import cluster, error_lines, program, run_programs
from tests.small import small_dataset
from tests.small_files import write_image_folder
from tests.workload import SMALL, plant

EVALUATE = "scripts/evaluate.py"
# What a user's program may be: it knows torch, and nothing of this project.
PROGRAM = """
import importlib.util, json, sys
import torch
assert importlib.util.find_spec("common") is None
names = {"classes.json": ""}
model = torch.export.load(sys.argv[1], extra_files=names).module()
images = torch.tensor(json.load(sys.stdin), dtype=torch.uint8)
best = model(images.permute(0, 3, 1, 2)).max(dim=1)
names = json.loads(names["classes.json"])
print(json.dumps([[names[k], p] for k, p in zip(best.indices.tolist(), best.values.tolist())]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("run")
    flags = [*SMALL, "--learning-rate", "0.02", "--output-dir", str(folder)]
    outcome, = run_programs([program("PartOne", flags, folder, "train", before=plant)])
    assert outcome.code == 0, outcome.output
    return folder / "PartOne"


def test_two_ranks_print_the_report_of_the_run_once(run, tmp_path):
    path = run / "checkpoints" / "Epoch_2.pt"
    outcomes = run_programs(cluster(EVALUATE, 2, [], tmp_path, by_rank={
        0: [str(path)], 1: ["not-on-this-rank.pt"]}, before={0: plant, 1: plant}))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    report = (run / "report.txt").read_text()
    assert report in outcomes[0].output and "Report" not in outcomes[1].output


def plant_without_data() -> None:
    """The small workload, whose data are gone."""
    from dataclasses import replace

    from common.options import workloads

    def gone(split, data_dir):
        raise AssertionError("no data are needed")

    plant()
    workloads.WORKLOADS["small"] = replace(workloads.WORKLOADS["small"], load=gone)


def test_pictures_have_the_classes_that_the_exported_model_gives_them(run, tmp_path):
    images, pictures = small_dataset(5).inputs, []
    for number, image in enumerate(images):
        pictures.append(tmp_path / f"{number}.png")
        Image.fromarray(image).save(pictures[-1])
    exported = tmp_path / "model.pt2"
    outcome, = run_programs([program(EVALUATE, [
        str(run / "checkpoints" / "Epoch_2.pt"), str(pictures[0]), "--threads", "1", "--export",
        str(exported), *map(str, pictures[1:])], tmp_path, "out", before=plant_without_data)])
    assert outcome.code == 0, outcome.output
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM, str(exported)], cwd=tmp_path,
                          input=json.dumps(np.asarray(images).tolist()), capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [f"{name} {100 * probability:.1f} %" for name, probability in json.loads(done.stdout)]
    assert len(set(said)) > 1
    for picture, words in zip(pictures, said, strict=True):
        assert f"{picture}: {words}" in outcome.output


def test_a_checkpoint_that_is_not_there_is_one_sentence(tmp_path):
    outcome, = run_programs([program(EVALUATE, [str(tmp_path / "gone.pt")], tmp_path, "out")])
    line, = error_lines(outcome.output)
    assert outcome.code == 4 and says(line, tmp_path / "gone.pt")


def test_a_fifth_of_a_folder_that_has_changed_since_draws_a_warning(tmp_path):
    write_image_folder(tmp_path / "images", 20)
    flags = ["--workload", "image-folder", "--data-dir", str(tmp_path / "images"), "--model",
             "small-cnn", "--epochs", "1", "--threads", "1"]
    trained, = run_programs([program("PartOne", [*flags, "--output-dir", str(tmp_path)], tmp_path,
                                     "train")])
    assert trained.code == 0, trained.output
    file = str(tmp_path / "PartOne/checkpoints/Epoch_1.pt")
    before, = run_programs([program(EVALUATE, [file], tmp_path, "before")])
    (tmp_path / "images/ant/0.png").unlink()
    after, = run_programs([program(EVALUATE, [file], tmp_path, "after")])
    assert before.code == after.code == 0, (before, after)
    said = [re.findall("^warning: .*", each.output, re.MULTILINE) for each in (before, after)]
    assert not said[0] and len(said[1]) == 1
