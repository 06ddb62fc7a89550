"""Whole programs whose ranks use different experts of one shape: right, or one sentence.

Mutations that turn this red: hand `gradients` on in `completed`; no `_average_completed` in
own_strategy; drop `fill`, or `drop`, from `completed`; drop `_arrivals.require_all`; leave the
zeros out of LocalSGD.average (saving in mid-round hangs).
"""

import re

import pytest
import torch

from common.run import checkpoint_file
from common.settings.strategies import SYNC_NAMES, VIRTUAL_SYNC_NAMES
from common.settings.types import SyncChoice
from common.settings.user_code import label
from tests.facts import says
from tests.ranks import ROOT, cluster, error_lines, program, run_programs

FILE = "tests/multiprocess/experts.py"
FLAGS = ["--workload", f"{ROOT}/{FILE}:EXPERTS", "--threads", "1", "--check-every", "0"]
OWN = [f"{ROOT}/{FILE}:Inherited", f"{ROOT}/examples/own_sync.py:MyAllReduce"]


def weights(folder) -> dict[str, torch.Tensor]:
    path, = (folder / "checkpoints").glob("Epoch_1.pt")
    return checkpoint_file.read(path)["model_state_dict"]


def alone(folder, *more: str) -> dict[str, torch.Tensor]:
    outcome, = run_programs([program("PartOne", [*FLAGS, "--output-dir", str(folder), *more],
                                     folder, "alone")])
    assert outcome.code == 0, outcome.output
    return weights(folder / "PartOne")


def train(folder, ranks: int, strategies: list[str], *more: str) -> None:
    flags = [*FLAGS, "--output-dir", str(folder), "--sync", ",".join(strategies), *more]
    for outcome in run_programs(cluster("PartTwo", ranks, flags, folder)):
        assert outcome.code == 0, outcome.output


@pytest.mark.parametrize("more", [(), ("--accumulate", "2")], ids=["one pass", "two"])
def test_every_strategy_learns_what_one_rank_learns(more, tmp_path):
    expected = alone(tmp_path)
    train(tmp_path, 3, [*SYNC_NAMES, *OWN], *more)
    for name in [*SYNC_NAMES, *map(label, OWN)]:
        found = weights(tmp_path / "PartTwo" / name)
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=0, atol=1e-12), (name, key)
            assert torch.equal(found[key], value) or not key.startswith(("idle", "frozen"))


def test_on_virtual_nodes_the_bits_are_those_of_one_rank(tmp_path):
    nodes = ("--virtual-nodes", "5")
    expected = alone(tmp_path, *nodes)
    train(tmp_path, 3, [*VIRTUAL_SYNC_NAMES], *nodes)
    for name in VIRTUAL_SYNC_NAMES:
        found = weights(tmp_path / "PartTwo" / name)
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    torch.manual_seed(0)
    assert expected["idle.weight"].abs().max() > 0


def test_ddp_says_what_it_cannot_do(tmp_path):
    flags = [*FLAGS, "--output-dir", str(tmp_path)]
    for outcome in run_programs(cluster("PartThree", 2, flags, tmp_path)):
        line, = error_lines(outcome.output)
        assert outcome.code == 2, outcome.output
        assert says(line, "gradient", "--sync overlapped-all-reduce")
        assert re.search(r"\brank [01]\b", line)


def test_local_sgd_saves_between_two_rounds(tmp_path):
    train(tmp_path, 3, ["local-sgd:4"], "--checkpoint-every", "3")
    assert weights(tmp_path / "PartTwo" / SyncChoice.parse("local-sgd:4").label)
