"""The literal parts on a GPU learn what they learn on the CPU; the seam's strategies over NCCL.

Marked `cuda`: skipped, with the reason, without a GPU (or two, for the last test).

Mutations that turn this red: keep the images on the CPU in InMemoryLoader; leave `device` out of
evaluation; choose gloo for a CUDA device; give every local rank the first GPU; refuse ranks that
share one; leave the momentum out of restore.
"""

import json
import os
from functools import partial

import pytest
import torch

from common.settings.settings import SYNC_NAMES
from tests.facts import says
from tests.ranks import cluster, program, run_programs
from tests.workload import SMALL, plant

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.cuda,
              pytest.mark.skipif(GPUS == 0, reason="needs a GPU, and there is none")]


def summary(folder, name: str) -> dict:
    return json.loads((folder / "out" / name / "summary.json").read_text())


def trained(part: str, folder, device: str, ranks: int = 1, *flags: str, before=plant):
    """The outcome of each rank of `part` on `device`."""
    folder.mkdir(exist_ok=True)
    everything = [*SMALL, "--device", device, "--output-dir", str(folder / "out"), *flags]
    if part == "PartOne":
        return run_programs([program(part, everything, folder, "rank0", before=before)])
    return run_programs(cluster(part, ranks, everything, folder,
                                before=dict.fromkeys(range(ranks), plant)))


@pytest.mark.parametrize("loader", ["memory", "workers"])
@pytest.mark.parametrize("precision, tolerance", [("float64", 1e-9), ("bf16", 0.1)])
def test_part_one_on_a_gpu_learns_what_it_learns_on_the_cpu(precision, tolerance, loader, tmp_path):
    flags = ["--precision", precision, "--loader", loader]
    for device in ("cpu", "cuda"):
        [outcome] = trained("PartOne", tmp_path / device, device, 1, *flags)
        assert outcome.code == 0, outcome.output
    assert says(outcome.output, torch.device("cuda", 0))
    on_gpu, on_cpu = (summary(tmp_path / device, "PartOne") for device in ("cuda", "cpu"))
    assert on_gpu["test_loss"] == pytest.approx(on_cpu["test_loss"], abs=tolerance)


def test_a_killed_run_resumes_on_a_gpu(tmp_path):
    [whole] = trained("PartOne", tmp_path / "whole", "cuda")
    flags = ["--checkpoint-every", "2"]
    [killed] = trained("PartOne", tmp_path / "killed", "cuda", 1, *flags,
                       before=partial(plant, kill_at=5))
    [resumed] = trained("PartOne", tmp_path / "killed", "cuda", 1, *flags, "--resume", "auto")
    assert [whole.code, killed.code, resumed.code] == [0, -9, 0], resumed.output
    assert summary(tmp_path / "killed", "PartOne")["test_loss"] == pytest.approx(
        summary(tmp_path / "whole", "PartOne")["test_loss"], abs=1e-4)


@pytest.mark.parametrize("part, folder", [("PartTwo", "PartTwo/all-reduce"),
                                          ("PartThree", "PartThree")])
def test_two_ranks_that_share_a_gpu_learn_what_two_cpus_learn(part, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES",
                       os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0])
    flags = ["--precision", "float64", *["--sync", "all-reduce"] * (part == "PartTwo")]
    for device in ("cpu", "cuda"):
        outcomes = trained(part, tmp_path / device, device, 2, *flags)
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert "backend gloo" in outcomes[0].output
    assert summary(tmp_path / "cuda", folder)["test_loss"] == pytest.approx(
        summary(tmp_path / "cpu", folder)["test_loss"], abs=1e-9)


def test_part_three_with_one_rank_averages_over_nccl(tmp_path):
    [outcome] = trained("PartThree", tmp_path / "ddp", "cuda")
    assert outcome.code == 0 and says(outcome.output, "nccl"), outcome.output


@pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, and there are {GPUS}")
@pytest.mark.parametrize("name", [*SYNC_NAMES, "PartThree"])
def test_two_gpus_learn_what_two_cpus_learn(name, tmp_path):
    part = "PartThree" if name == "PartThree" else "PartTwo"
    flags = ["--precision", "float64", *([] if part == "PartThree" else ["--sync", name])]
    for device in ("cpu", "cuda"):
        outcomes = trained(part, tmp_path / device, device, 2, *flags)
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    folder = part if part == "PartThree" else f"{part}/{name}"
    assert says(outcomes[0].output, "nccl")
    assert summary(tmp_path / "cuda", folder)["test_loss"] == pytest.approx(
        summary(tmp_path / "cpu", folder)["test_loss"], abs=1e-9)
