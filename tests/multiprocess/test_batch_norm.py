"""N ranks with synchronised batch norm must equal one rank with torch's own on the joined batch."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.arithmetic.pooling import PooledBatchNorm2d
from common.model.batch_norm import synchronize_batch_norm
from tests.multiprocess.batch_norm_cases import (
    LAYERS,
    after_training_batch,
    cubes,
    make_batches,
    make_layer,
    shard_of,
)
from tests.ranks import run_ranks

EXACT = {"rtol": 0.0, "atol": 1e-12}
SHARDS = [[8], [4, 4], [5, 3], [1, 6], [0, 5], [3, 3, 3], [3, 2, 2], [1, 1, 1], [4, 0, 1],
          [2, 2, 2, 2], [1, 5, 2, 4], [1, 1, 1, 0]]


def layer_on_shard(name: str, shards: list[int]) -> dict[str, Tensor]:
    """Two training batches on this rank's shard; everything that one rank can be compared by."""
    layer = synchronize_batch_norm(make_layer(name))
    first, second, factor = (shard_of(batch, shards) for batch in make_batches(name, sum(shards)))
    layer(first)
    return after_training_batch(layer, second, factor, dist.get_world_size() / sum(shards))


def all_layers_on_shard(shards: list[int]) -> dict[str, dict[str, Tensor]]:
    return {name: layer_on_shard(name, shards) for name in LAYERS}


@pytest.mark.parametrize("shards", SHARDS, ids=str)
def test_ranks_equal_one_rank_on_the_joined_batch(shards):
    results = run_ranks(len(shards), all_layers_on_shard, shards)
    for name in LAYERS:
        layer = make_layer(name)
        first, second, factor = make_batches(name, sum(shards))
        layer(first)
        expected = after_training_batch(layer, second, factor, 1 / sum(shards))
        of_ranks = [result[name] for result in results]
        for key, value in expected.items():
            parts = [result[key] for result in of_ranks]
            if key == "output":
                torch.testing.assert_close(torch.cat(parts), value, **EXACT)
            elif key == "input":  # all ranks' scaled losses add up to world_size times the mean
                torch.testing.assert_close(torch.cat(parts) / len(shards), value, **EXACT)
            elif key.startswith("gradient"):
                torch.testing.assert_close(torch.stack(parts).mean(0), value, **EXACT)
            else:
                for part in parts:
                    torch.testing.assert_close(part, value, **EXACT)


def small_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), PooledBatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(6 * 16, 5)).double().to(memory_format=torch.channels_last)


def train(network: nn.Module, rank: int, world_size: int) -> dict[str, Tensor]:
    """Five steps of SGD on uneven shards, the last of a short batch; gradients averaged by hand."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(4)
    for size in (10, 10, 10, 10, 5):
        images = torch.randn(size, 3, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(5, (size,), generator=generator)
        local = torch.arange(size).tensor_split(world_size)[rank]
        loss = nn.functional.cross_entropy(network(images[local]), labels[local])
        optimizer.zero_grad()
        (loss * len(local) * world_size / size).backward()
        if world_size > 1:
            for parameter in network.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        optimizer.step()
    return network.state_dict()


def train_synchronized_and_local() -> list[dict[str, Tensor]]:
    networks = [synchronize_batch_norm(small_network()), small_network()]
    return [train(network, dist.get_rank(), dist.get_world_size()) for network in networks]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_training_a_network_equals_one_rank_and_local_statistics_do_not(world_size):
    expected = train(small_network(), 0, 1)
    for synchronized, local in run_ranks(world_size, train_synchronized_and_local):
        for key, value in expected.items():
            torch.testing.assert_close(synchronized[key], value, rtol=0.0, atol=1e-11)
        assert (local["7.weight"] - expected["7.weight"]).abs().max() > 1e-3


def directional_derivatives() -> list[tuple[Tensor, Tensor]]:
    """For each rank: derivative of the sum of all ranks' losses along a change of its input alone.

    Each pair is (central difference, inner product with the gradient of that rank's backward).
    """
    layer = synchronize_batch_norm(make_layer("2d"))
    input, direction, factor = (shard_of(b, [3, 1, 2]) for b in make_batches("2d", 6, seed=7))
    input.requires_grad_()
    cubes(layer(input), factor).backward()
    pairs = []
    for rank in range(dist.get_world_size()):
        along = direction * float(rank == dist.get_rank())
        with torch.no_grad():
            higher, lower = (cubes(layer(input + h * along), factor) for h in (1e-5, -1e-5))
        pair = torch.stack([(higher - lower) / 2e-5, (input.grad * along).sum()])
        dist.all_reduce(pair)
        pairs.append(tuple(pair))
    return pairs


def test_input_gradient_is_the_derivative_of_the_sum_of_all_losses():
    for pairs in run_ranks(3, directional_derivatives):
        for difference, product in pairs:
            assert abs(product) > 0.01
            torch.testing.assert_close(product, difference, rtol=1e-7, atol=0.0)
