"""Pooling that keeps only the places: the numbers are torch's own, and the maps are let go."""

import pytest
import torch
from torch import nn

from common.pooling import MaxPool2d
from common.vgg11 import VGG11


def maps_with_ties(dtype: torch.dtype, layout: torch.memory_format, size: int = 8) -> torch.Tensor:
    """(3, 5, size, size) of a few values only, so that windows hold their maximum twice."""
    generator = torch.Generator().manual_seed(1)
    maps = torch.randint(-2, 3, (3, 5, size, size), generator=generator).to(dtype)
    return maps.contiguous(memory_format=layout).requires_grad_()


def pooled_and_gradient(layer: nn.Module, maps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pooled = layer(maps)
    towards = torch.arange(pooled.numel()).view(pooled.shape).to(maps.dtype)
    (gradient,) = torch.autograd.grad(pooled, maps, towards)
    return pooled.detach(), gradient


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("window", "size"), [(2, 8), (2, 7), (3, 8), (2, 2)])
def test_numbers_are_those_of_torch_to_the_bit(window: int, size: int, dtype: torch.dtype,
                                               layout: torch.memory_format) -> None:
    maps = maps_with_ties(dtype, layout, size)
    pooled, gradient = pooled_and_gradient(MaxPool2d(window), maps)
    expected, expected_gradient = pooled_and_gradient(nn.MaxPool2d(window), maps)
    assert torch.equal(pooled, expected) and pooled.stride() == expected.stride()
    assert torch.equal(gradient, expected_gradient)
    assert gradient.stride() == expected_gradient.stride()


def test_gradient_is_that_of_the_function() -> None:
    maps = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True,
                       generator=torch.Generator().manual_seed(1))
    torch.autograd.gradcheck(MaxPool2d(2), maps)


def test_only_places_are_kept_for_backward() -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        MaxPool2d(2)(maps_with_ties(torch.float32, torch.channels_last))
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in kept] == [(torch.int64, (3, 5, 4, 4))]


def test_one_sample_without_a_batch() -> None:
    maps = maps_with_ties(torch.float32, torch.contiguous_format).detach()[0].requires_grad_()
    for found, expected in zip(pooled_and_gradient(MaxPool2d(2), maps),
                               pooled_and_gradient(nn.MaxPool2d(2), maps), strict=True):
        assert torch.equal(found, expected)


def test_vgg11_pools_so() -> None:
    assert sum(isinstance(layer, MaxPool2d) for layer in VGG11().modules()) == 5
