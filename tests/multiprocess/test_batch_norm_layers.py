"""Synchronised layers: their messages, when they are torch's own, and how models are converted."""

import copy
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.model.batch_norm import (
    SynchronizedBatchNorm1d,
    SynchronizedBatchNorm2d,
    freeze_batch_norm,
    synchronize_batch_norm,
)
from tests.ranks import run_ranks

COLLECTIVES = [name for name in dir(dist)
               if name.startswith(("all_", "reduce", "broadcast", "gather", "scatter", "barrier",
                                   "monitored", "send", "recv", "isend", "irecv", "batch_isend"))]


def small_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.01, momentum=0.3), nn.ReLU(),
                         nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, momentum=None), nn.Flatten(),
                         nn.Linear(5 * 16, 6), nn.BatchNorm1d(6, affine=False))


def count_collectives() -> list[Counter]:
    """Collectives so far after: forward, backward, forward in eval mode."""
    calls: Counter = Counter()

    def counting(name):
        original = getattr(dist, name)

        def call(*args, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)
        return call

    for name in COLLECTIVES:
        if callable(getattr(dist, name)):
            setattr(dist, name, counting(name))
    network, counts = synchronize_batch_norm(small_network()), []
    images = torch.randn(4, 3, 8, 8)
    output = network(images)
    counts.append(Counter(calls))
    output.sum().backward()
    counts.append(Counter(calls))
    network.eval()(images)
    return [*counts, Counter(calls)]


def test_one_collective_each_way_per_layer_and_none_in_eval_mode():
    for forward, backward, evaluation in run_ranks(2, count_collectives):
        assert forward == {"all_gather": 3}
        assert backward == {"all_gather": 6}
        assert evaluation == backward


def plain_and_synchronized(training: bool) -> list[tuple[Tensor, dict[str, Tensor]]]:
    results = []
    for network in (small_network(), synchronize_batch_norm(small_network())):
        torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
        output = network.train(training)(torch.randn(4, 3, 8, 8))
        results.append((output.detach(), network.state_dict()))
    return results


def assert_same_bits(results: list[tuple[Tensor, dict[str, Tensor]]]) -> None:
    (plain, plain_state), (synchronized, state) = results
    assert torch.equal(plain, synchronized)
    assert plain_state.keys() == state.keys()
    assert all(torch.equal(plain_state[key], state[key]) for key in state)


def test_eval_mode_or_a_world_of_one_or_no_group_is_torch_bit_for_bit():
    assert_same_bits(plain_and_synchronized(training=True))
    assert_same_bits(run_ranks(1, plain_and_synchronized, True)[0])
    for results in run_ranks(3, plain_and_synchronized, False):
        assert_same_bits(results)


def normalize_vectors(sizes: list[int]) -> str:
    try:
        SynchronizedBatchNorm1d(2)(torch.ones(sizes[dist.get_rank()], 2))
    except ValueError:
        return "refused"
    return "normalised"


def test_one_value_per_channel_over_all_ranks_is_refused_on_every_rank():
    with pytest.raises(ValueError):
        nn.BatchNorm1d(2)(torch.ones(1, 2))
    for sizes in ([1, 0], [0, 0]):
        assert run_ranks(2, normalize_vectors, sizes) == ["refused"] * 2
    assert run_ranks(2, normalize_vectors, [1, 1]) == ["normalised"] * 2


def tensors_of(model: nn.Module) -> dict[str, int]:
    return {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]}


def settings_of(model: nn.Module) -> list[tuple]:
    return [(layer.training, layer.momentum, layer.eps, layer.affine)
            for layer in model.modules() if hasattr(layer, "running_mean")]


def test_conversion_and_back_keeps_every_tensor_and_setting():
    model = small_network()
    model[1].eval()
    tensors, settings = tensors_of(model), settings_of(model)
    assert synchronize_batch_norm(model) is model
    assert [type(model[i]) for i in (1, 4, 7)] == [
        SynchronizedBatchNorm2d, SynchronizedBatchNorm2d, SynchronizedBatchNorm1d]
    assert (tensors_of(model), settings_of(model)) == (tensors, settings)
    small_network().load_state_dict(model.state_dict(), strict=True)


def test_conversion_of_a_bare_layer_and_of_a_subclass():
    class OwnBatchNorm(nn.BatchNorm2d):
        pass

    assert type(synchronize_batch_norm(nn.BatchNorm2d(3))) is SynchronizedBatchNorm2d
    assert type(synchronize_batch_norm(OwnBatchNorm(3))) is OwnBatchNorm


@pytest.mark.parametrize("convert", [synchronize_batch_norm, lambda model: model])
def test_frozen_statistics_stay_in_training_and_in_copies_and_weights_learn(convert):
    model = freeze_batch_norm(convert(small_network()))
    images = torch.randn(4, 3, 8, 8)
    expected = small_network().eval()(images)
    for frozen in (model, copy.deepcopy(model)):
        before = copy.deepcopy(frozen.state_dict())
        output = frozen.train()(images)
        output.sum().backward()
        assert torch.equal(output, expected)
        assert all(torch.equal(before[key], value) for key, value in frozen.state_dict().items())
        assert frozen[1].weight.grad is not None
