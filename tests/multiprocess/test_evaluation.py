"""Evaluation: every test sample once on any number of ranks, means over samples, leader's buffers.

Mutations that turn this red: evaluate rank 0's shard everywhere; do not share the buffers; add up
batch means; do not look whether every sample was seen; gather the totals on every rank; blame the
weights before looking at the samples; number them from the first of the rank, or of the batch.
"""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from common import evaluation
from common.cluster.node import Node
from common.core.failures import NonFiniteLoss, PeerLost
from common.core.metrics import ACCURACY, Totals
from common.core.precision import Precision
from common.core.world import World
from common.data.dataset import make_dataset
from common.evaluation import Evaluation, evaluate
from common.run.run_log import RunLog
from common.run.state import over_ranks
from common.settings.settings import Settings
from tests.facts import says
from tests.ranks import run_ranks
from tests.small import small_dataset, small_model, small_run
from tests.workload import plant

SAMPLES = 307  # more than one batch of 250 on one rank, and no multiple of 2, 3 or 4


def evaluated(folder: str) -> Evaluation:
    """The evaluation of one model, after the ranks' running statistics have drifted apart."""
    plant()
    rank = dist.get_rank()
    model = small_model(torch.float64, nn.BatchNorm2d)
    model.layers[1].running_mean.add_(rank)
    settings = Settings(workload="small", batch_size=10, precision="float64")
    node = Node(World(rank, dist.get_world_size()), torch.device("cpu"), 1)
    log = RunLog(Path(folder) / f"log{rank}", Path(folder) / f"jsonl{rank}", node.world)
    run = small_run(Path(folder), settings, node, log, model)
    return evaluate(run, nn.CrossEntropyLoss(), small_dataset(SAMPLES))


@pytest.mark.parametrize("rank, sample", [(0, 401), (1, 555)])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_sample_that_is_not_finite_is_named_and_no_weights_blamed(rank, sample, split):
    points = np.zeros((600, 1, 1, 2), np.float32)
    points[sample] = np.inf
    run = SimpleNamespace(settings=Settings(workload="spiral-mlp"), precision=Precision("float32"),
                          model=nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), metric=ACCURACY,
                          node=Node(World(rank, 2), torch.device("cpu"), 1))
    with pytest.raises(NonFiniteLoss) as raised:
        evaluate(run, nn.CrossEntropyLoss(),
                 make_dataset(points, np.zeros(600, np.int64), ["one", "other"]), split)
    assert says(raised.value, f"sample {sample}", split) and not says(raised.value, "weights")


def evaluated_but_for_the_last_sample(folder: str) -> Evaluation:
    whole = evaluation._my_batches
    evaluation._my_batches = lambda samples, world: whole(samples - 1, world)
    return evaluated(folder)


def test_a_sample_left_out_is_found_out(tmp_path):
    with pytest.raises(PeerLost, match="sample"):
        run_ranks(1, evaluated_but_for_the_last_sample, str(tmp_path))


def test_one_rank_gives_the_mean_over_samples(tmp_path):
    result, = run_ranks(1, evaluated, str(tmp_path))
    model = small_model(torch.float64, nn.BatchNorm2d).eval()
    dataset = small_dataset(SAMPLES)
    images = (torch.from_numpy(dataset.inputs).double() / 255 - 0.5) / 0.25
    with torch.no_grad():
        outputs = model(images.permute(0, 3, 1, 2))
    expected = nn.functional.cross_entropy(outputs, torch.from_numpy(dataset.targets))
    assert result.loss == pytest.approx(float(expected), abs=1e-12)
    assert result.predictions.tolist() == outputs.argmax(1).tolist()
    assert result.accuracy == (result.predictions == dataset.targets).mean()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_any_number_of_ranks_gives_the_same(world_size, tmp_path):
    alone, = run_ranks(1, evaluated, str(tmp_path))
    for result in run_ranks(world_size, evaluated, str(tmp_path)):
        assert result.loss == pytest.approx(alone.loss, abs=1e-12)
        assert result.predictions.tolist() == alone.predictions.tolist()
        assert result.truth.tolist() == small_dataset(SAMPLES).targets.tolist()


def added_up() -> tuple[list[str], int]:
    """The totals of all ranks; and how often a rank received every rank's of anything."""
    rank, calls, gather = dist.get_rank(), [], dist.all_gather
    dist.all_gather = lambda *arguments: calls.append(1) or gather(*arguments)
    node = Node(World(rank, dist.get_world_size()), torch.device("cpu"), 1)
    own = Totals(Fraction(1, 3 ** rank), Fraction(rank), 10 ** (5 * rank))
    return over_ranks(own, node).as_json(), len(calls)


def test_totals_are_added_up_by_the_leader_alone():
    """Each of N ranks receives one sum, and not N."""
    assert run_ranks(3, added_up) == [(["13/9", "3", "10000100001"], 0)] * 3
