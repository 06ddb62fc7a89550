"""Batch norm and ReLU as one, with and without pooling: the numbers of the layers on their own.

Mutations that turn this red, in norm_relu: no `- mean * of_bias`; the count of pooled positions in
line_of_gradient; no `num_batches_tracked.add_`; any condition left out of can_normalize; in
fused_layers: `del layers[:1]`, any condition of _next_maps, a ReLU taken for granted. In
cpp/batch_norm.cpp: `line < 0.0f`; no mask in one of the three loops; `first + size` without min.
"""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from common.arithmetic import fused_layers, norm_relu
from common.arithmetic.choice import use_fast_convolutions
from common.arithmetic.fused_layers import FusedLayers, fuse
from common.arithmetic.norm_relu import BLOCK
from common.arithmetic.pooling import PooledBatchNorm2d
from common.arithmetic.torch_private import BeforeUse
from common.core.precision import Precision
from common.model.vgg11 import VGG11
from tests.unit.test_first_block import BF16_ERROR, block, images, learned, relative


def row(norm: nn.Module, size: int = 4, channels: int = 48) -> tuple[nn.Sequential, Tensor]:
    """A first block that its input keeps from being one, `norm` and ReLU; and maps for those two.

    Half of the scales are negative.
    """
    torch.manual_seed(4)
    for each in norm.parameters():
        nn.init.normal_(each)
    layers = nn.Sequential(*block(), norm, nn.ReLU(inplace=True))
    fuse(layers)
    del layers[:3]
    maps = torch.randn(5, channels, size, size) + 0.5
    return layers, maps.contiguous(memory_format=torch.channels_last)


def is_one(layers: nn.Sequential, maps: Tensor) -> bool:
    """True if nobody asked the ReLU."""
    asked = []
    layers[-1].forward = lambda input: asked.append(1) or input.relu()
    layers(maps)
    return not asked


NORMS = {"plain": nn.BatchNorm2d, "pooled": PooledBatchNorm2d}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", [2, 4, 12])
def test_numbers_are_those_of_the_layers(kind: str, size: int, bf16: bool) -> None:
    layers, maps = row(NORMS[kind](48), size)
    assert maps[:, 0].numel() % BLOCK
    maps = (maps.bfloat16() if bf16 else maps).requires_grad_()
    alone = nn.Sequential(*deepcopy(layers)).double()
    same = maps.detach().double().requires_grad_()
    expected = learned(alone, same) | {"maps": same.grad}
    assert type(layers) is FusedLayers and is_one(deepcopy(layers), maps)
    found = learned(layers, maps) | {"maps": maps.grad}
    assert found.keys() == expected.keys() and found["outputs"].dtype == maps.dtype
    for name, each in found.items():
        assert relative(each, expected[name]) < (BF16_ERROR if bf16 else 3e-6), name


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_where_the_line_is_exactly_zero_no_gradient_goes_through(kind: str, bf16: bool) -> None:
    """ReLU does the same. Maps of whole numbers and of their opposites have mean zero."""
    layers, maps = row(NORMS[kind](48))
    layers[0].bias.data.zero_()
    half = torch.randint(-2, 3, maps.shape, dtype=torch.bfloat16 if bf16 else torch.float32)
    maps = torch.cat([half, -half]).contiguous(memory_format=torch.channels_last).requires_grad_()
    alone = nn.Sequential(*deepcopy(layers)).double()
    same = maps.detach().double().requires_grad_()
    expected = learned(alone, same) | {"maps": same.grad}
    found = learned(layers, maps) | {"maps": maps.grad}
    for name in ("maps", "0.weight", "0.bias"):
        assert relative(found[name], expected[name]) < (BF16_ERROR if bf16 else 3e-6), name


def test_all_of_vgg11_learns_what_its_layers_learn() -> None:
    """Untrained, with convolutions by the library: the error is that of float32."""
    model = VGG11().to(memory_format=torch.channels_last)
    exact = deepcopy(model).double()
    use_fast_convolutions(model, (3, 32, 32), 8, Precision(), "fused" + 7 * " library")
    maps = images(height=32, width=32, samples=8)
    expected, found = learned(exact, maps.double()), learned(model, maps)
    assert relative(found["outputs"], expected["outputs"]) < 1e-5
    weights = [name for name in found if name.endswith("weight")]
    assert len(weights) == 17
    for name in weights:
        assert relative(found[name], expected[name]) < 1e-3, name


@pytest.mark.parametrize("kind", NORMS)
def test_bits_are_the_same_with_any_number_of_threads(kind: str, monkeypatch) -> None:
    """But for torch's statistics."""
    monkeypatch.setattr(norm_relu, "batch_statistics", lambda maps, *_: (
        torch.full((48,), 0.5), torch.full((48,), 2.0)))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            layers, maps = row(NORMS[kind](48), size=32)
            found.append(learned(layers, maps.requires_grad_()) | {"maps": maps.grad})
    finally:
        torch.set_num_threads(threads)
    for name in ("outputs", "0.weight", "0.bias", "maps"):
        assert all(torch.equal(each[name], found[0][name]) for each in found), name


@pytest.mark.parametrize("kind", NORMS)
def test_a_place_without_a_number_says_so(kind: str) -> None:
    layers, maps = row(NORMS[kind](48))
    maps[1, 2, 3, 3] = float("nan")
    assert layers(maps)[:, 2].isnan().all()


class Doubled(nn.BatchNorm2d):
    """A batch norm of the user's."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(("norm", "maps"), [
    (Doubled(48), None),
    (nn.BatchNorm2d(48).eval(), None), (PooledBatchNorm2d(48).eval(), None),
    (nn.BatchNorm2d(48, affine=False), None), (nn.BatchNorm2d(48, momentum=None), None),
    (nn.BatchNorm2d(48, track_running_stats=False), None), (PooledBatchNorm2d(48, size=4), None),
    (PooledBatchNorm2d(48), torch.randn(2, 48, 5, 4)), (nn.GroupNorm(4, 48), None),
    (nn.BatchNorm2d(40), torch.randn(2, 40, 4, 4)), (nn.BatchNorm2d(48, bias=False), None),
    (PooledBatchNorm2d(48), torch.zeros(0, 48, 4, 4)),
    (nn.BatchNorm2d(48).double(), torch.randn(2, 48, 4, 4).double())])
def test_other_norms_and_maps_are_for_the_layers(norm: nn.Module, maps: Tensor | None) -> None:
    layers, usual = row(norm)
    maps = (usual if maps is None else maps).contiguous(memory_format=torch.channels_last)
    alone = nn.Sequential(*deepcopy(layers))
    assert not is_one(deepcopy(layers), maps)
    assert torch.equal(layers(maps), alone(maps))


@pytest.mark.parametrize("kind", NORMS)
def test_parameters_in_bf16_are_for_the_layers(kind: str) -> None:
    layers, maps = row(NORMS[kind](48))
    assert not is_one(layers.bfloat16(), maps.bfloat16())


def test_frozen_layers_before_a_norm_ask_for_no_gradient() -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    learned(layers, maps)
    assert layers[0].weight.grad is not None and maps.grad is None


def test_maps_in_rows_of_samples_are_for_the_layers() -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    assert is_one(layers, maps) and not is_one(layers, maps.contiguous())


def test_one_value_a_channel_is_refused_as_torch_refuses_it() -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layers(maps[:1, :, :1, :1])


@pytest.mark.parametrize("place", [0, 1])
def test_a_hook_sees_the_maps_between(place: int) -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    seen: list[Tensor] = []
    layers[place].register_forward_hook(lambda _, inputs, output: seen.append(output.clone()))
    alone = nn.Sequential(*deepcopy(layers))
    assert torch.equal(layers(maps), alone(maps))
    assert torch.equal(seen[0], seen[1])


def test_who_wants_to_know_of_a_use_is_told_before() -> None:
    told = []
    layers = block()
    layers.extend([nn.BatchNorm2d(64), nn.ReLU()])
    fuse(layers)
    for place, layer in enumerate(layers):
        layer.register_forward_pre_hook(BeforeUse(partial(told.append, place)))
    assert is_one(layers, images())
    assert told == [0, 1, 2, 3, 4]
    layers.eval()(images())
    assert told == [0, 1, 2, 3, 4] * 2


def test_what_follows_a_norm_is_asked_unless_it_is_a_relu() -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    layers[1] = nn.Hardtanh()
    alone = nn.Sequential(*deepcopy(layers))
    assert torch.equal(layers(maps), alone(maps))


def test_without_a_compiler_all_are_layers(monkeypatch) -> None:
    layers, maps = row(nn.BatchNorm2d(48))
    monkeypatch.setattr(fused_layers, "why_not", lambda: "there is no C++ compiler")
    assert not is_one(layers, maps)
