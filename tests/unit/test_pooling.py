"""Pooling that keeps only the places, and batch norm that comes after it: torch's own numbers.

Mutations that turn this red, in pooling: pool `maps` whatever the sign; drop `pooled *= sign`; the
running statistics or their momentum not passed; drop `num_batches_tracked.add_`; no `eps` in
backward's scale; `False` for True in native_batch_norm_backward; pool first in eval mode too, or in
training batch norm first; unpool under autocast; return _unpool's maps in another format. In
batch_norm (and here tests/multiprocess/test_batch_norm.py): leave PooledBatchNorm2d out of the
table, or its pooling.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from common.arithmetic import kernels
from common.arithmetic.compiled import Compiled
from common.arithmetic.pooling import PooledBatchNorm2d, max_pool
from common.model.vgg11 import VGG11


def maps_with_ties(dtype: torch.dtype, layout: torch.memory_format, size: int = 8) -> Tensor:
    """(3, 5, size, size) of a few values only, so that windows hold their maximum twice."""
    generator = torch.Generator().manual_seed(1)
    maps = torch.randint(-2, 3, (3, 5, size, size), generator=generator).to(dtype)
    return maps.contiguous(memory_format=layout).requires_grad_()


def pooled_and_gradient(pool: Callable[[Tensor], Tensor], maps: Tensor) -> tuple[Tensor, Tensor]:
    pooled = pool(maps)
    towards = torch.arange(pooled.numel()).view(pooled.shape).to(maps.dtype)
    (gradient,) = torch.autograd.grad(pooled, maps, towards)
    return pooled.detach(), gradient


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("window", "size"), [(2, 8), (2, 7), (3, 8), (2, 2)])
def test_numbers_are_those_of_torch_to_the_bit(window: int, size: int, dtype: torch.dtype,
                                               layout: torch.memory_format) -> None:
    maps = maps_with_ties(dtype, layout, size)
    pooled, gradient = pooled_and_gradient(lambda each: max_pool(each, window), maps)
    expected, expected_gradient = pooled_and_gradient(nn.MaxPool2d(window), maps)
    assert torch.equal(pooled, expected) and pooled.stride() == expected.stride()
    assert torch.equal(gradient, expected_gradient)
    assert gradient.stride() == expected_gradient.stride()


def test_gradient_is_that_of_the_function() -> None:
    maps = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True,
                       generator=torch.Generator().manual_seed(1))
    torch.autograd.gradcheck(lambda each: max_pool(each, 2), maps)


def kept_by(layer: Callable[[Tensor], Tensor], maps: Tensor) -> list[tuple[torch.dtype, int]]:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(maps)
    return [(tensor.dtype, tensor.numel()) for tensor in kept]


def test_only_places_are_kept_for_backward() -> None:
    maps = maps_with_ties(torch.float32, torch.channels_last)
    assert kept_by(lambda each: max_pool(each, 2), maps) == [(torch.int64, 3 * 5 * 4 * 4)]


def test_one_sample_without_a_batch() -> None:
    maps = maps_with_ties(torch.float32, torch.contiguous_format).detach()[0].requires_grad_()
    for found, expected in zip(pooled_and_gradient(lambda each: max_pool(each, 2), maps),
                               pooled_and_gradient(nn.MaxPool2d(2), maps), strict=True):
        assert torch.equal(found, expected)


def norms(dtype: torch.dtype, scales: tuple[float, ...]) -> tuple[PooledBatchNorm2d, nn.Sequential]:
    """The layer, and torch's two; `scales` are repeated over the 5 channels."""
    layer = PooledBatchNorm2d(5).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(scales).repeat(5)[:5])
        layer.bias.copy_(torch.linspace(-1, 1, 5))
    plain = nn.BatchNorm2d(5).to(dtype)
    plain.load_state_dict(deepcopy(layer.state_dict()))
    return layer, nn.Sequential(plain, nn.MaxPool2d(2))


def noisy_maps(dtype: torch.dtype, layout: torch.memory_format, size: int = 8) -> Tensor:
    maps = 3 * torch.randn(6, 5, size, size, generator=torch.Generator().manual_seed(1)) + 2
    return maps.to(dtype).contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("scales", "size"), [((1.0, 0.5), 8), ((1.0, -0.5), 8), ((-1.0,), 7),
                                              ((2.0, 0.0, -0.1), 2)])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_pooled_batch_norm_is_batch_norm_and_then_pooling(
        dtype: torch.dtype, precision: float, scales: tuple[float, ...], size: int,
        layout: torch.memory_format, training: bool) -> None:
    """Outputs, all gradients and the running statistics, step after step."""
    layer, expected = norms(dtype, scales)
    layer.train(training), expected.train(training)
    for _ in range(3):
        maps = noisy_maps(dtype, layout, size)
        found, wanted = pooled_and_gradient(layer, maps), pooled_and_gradient(expected, maps)
        layer(maps).square().sum().backward()
        expected(maps).square().sum().backward()
        for one, other in zip(
                [*found, layer.bias.grad, layer.running_mean, layer.running_var,
                 layer.weight.grad],
                [*wanted, expected[0].bias.grad, expected[0].running_mean,
                 expected[0].running_var, expected[0].weight.grad], strict=True):
            assert one is not None and other is not None
            if one is layer.weight.grad and 0.0 in scales:  # any place will do: it counts 0 times
                one, other = one[layer.weight != 0], other[layer.weight != 0]
            assert torch.allclose(one, other, rtol=precision, atol=precision * 50)
            assert one.dtype == other.dtype
        assert found[0].is_contiguous(memory_format=layout)
    assert torch.equal(layer.num_batches_tracked, expected[0].num_batches_tracked)


def test_gradient_of_pooled_batch_norm_is_that_of_the_function() -> None:
    layer, _ = norms(torch.float64, (1.0, -0.5))
    maps = noisy_maps(torch.float64, torch.channels_last, 4)
    torch.autograd.gradcheck(lambda each, *_: layer(each), (maps, layer.weight, layer.bias))


def test_bf16_maps_are_normalised_by_float32_statistics() -> None:
    layer, expected = norms(torch.float32, (1.0, -0.5))
    maps = noisy_maps(torch.bfloat16, torch.channels_last)
    for found, wanted in zip(pooled_and_gradient(layer, maps),
                             pooled_and_gradient(expected, maps), strict=True):
        assert found.dtype == wanted.dtype == torch.bfloat16
        assert float((found - wanted).float().norm() / wanted.float().norm()) < 0.02
    assert torch.allclose(layer.running_var, expected[0].running_var)


@pytest.mark.parametrize("pooled", [True, False])
def test_backward_may_run_under_autocast_too(pooled: bool) -> None:
    layer = norms(torch.float32, (1.0, -0.5))[0] if pooled else nn.MaxPool2d(2)
    maps = noisy_maps(torch.bfloat16, torch.channels_last)
    expected = pooled_and_gradient(layer, maps)
    with torch.autocast("cpu", torch.bfloat16):
        found = pooled_and_gradient(layer if pooled else lambda each: max_pool(each, 2), maps)
    assert all(map(torch.equal, found, expected))


def test_keeps_the_maps_before_and_a_quarter_of_places() -> None:
    layer, _ = norms(torch.float32, (1.0,))
    maps = noisy_maps(torch.float32, torch.channels_last)
    kept = [each for each in kept_by(layer, maps) if each[1] > 5]
    assert kept == [(torch.float32, maps.numel()), (torch.float32, maps.numel() // 4),
                    (torch.int64, maps.numel() // 4)]
    # In training nothing normalises all of it, to be pooled afterwards.
    assert "NormalizedMaxima" in type(layer(maps).grad_fn).__name__


def test_no_samples_and_a_frozen_layer() -> None:
    layer, expected = norms(torch.float32, (1.0, -0.5))
    for each in (layer, expected):
        assert each(torch.zeros(0, 5, 8, 8)).shape == (0, 5, 4, 4)
    layer.eval(), expected.eval()
    maps = noisy_maps(torch.float32, torch.channels_last)
    before = deepcopy(layer.state_dict())
    assert torch.equal(layer(maps), expected(maps))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_vgg11_pools_so() -> None:
    assert sum(isinstance(layer, PooledBatchNorm2d) for layer in VGG11().modules()) == 5


@pytest.mark.parametrize("scales", [(1.0, 0.5), (2.0, 0.0, -0.1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 8])
def test_compiled_and_torchs_have_the_same_bits(dtype, size, scales, monkeypatch) -> None:
    assert kernels.library().library, "this test needs a C++ compiler"
    maps = torch.cat([noisy_maps(dtype, torch.channels_last, size).detach(),
                      torch.ones(2, 5, size, size, dtype=dtype)]).repeat(1, 16, 1, 1)
    maps = maps.contiguous(memory_format=torch.channels_last).requires_grad_()
    found = []
    for library in (kernels.library, lambda: Compiled(None, "not today")):
        monkeypatch.setattr(kernels, "library", library)
        layer = PooledBatchNorm2d(80)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(scales).repeat(80)[:80])
        outputs, gradient = pooled_and_gradient(layer, maps)
        layer(maps).float().square().sum().backward()
        found.append([outputs, gradient, layer.weight.grad, layer.bias.grad])
        kept = {kind for kind, _ in kept_by(layer, maps)}
        assert (torch.uint8 in kept) == (len(found) == 1)
    assert all(map(torch.equal, *found))
