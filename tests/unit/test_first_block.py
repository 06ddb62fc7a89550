"""The first block as one: the numbers of its layers, and its layers themselves where it can't be.

Mutations that turn this red, in first_block: no bias in `taps`, or another order of weight's
dimensions; no `- mean.square()`; no clamp; no `track`; sign left out in the kernel; `constant` or
`slope` left out of `of_taps`; no `- mean * of_shift`; any condition left out of can_pool or
is_first_block. In cpp/first_block.cpp: a place for NOWHERE, or NOWHERE for none; `<= MOST` in the
last windows of a row; a sum kept over images; `ROWS = 32`; `line < 0.0f` in is_on (batch_norm.cpp).
"""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from common.arithmetic import kernels
from common.arithmetic.choice import Shape, algorithms, by_rule, use_fast_convolutions
from common.arithmetic.compiled import Compiled
from common.arithmetic.fused_layers import FusedConv2d, FusedLayers, fusable, fuse
from common.arithmetic.pooling import PooledBatchNorm2d
from common.core.precision import Precision
from common.model.batch_norm import synchronize_batch_norm
from common.model.export import in_plain_layers
from common.model.vgg11 import VGG11

BF16_ERROR = 4e-3


def block(channels: int = 3, filters: int = 64, bias: bool = True) -> nn.Sequential:
    """Random weights; about half of the scales negative."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Conv2d(channels, filters, 3, padding=1, bias=bias),
                           PooledBatchNorm2d(filters), nn.ReLU(inplace=True))
    nn.init.normal_(layers[1].weight)
    nn.init.normal_(layers[1].bias)
    return layers


def images(channels: int = 3, height: int = 8, width: int = 8, samples: int = 3) -> Tensor:
    """Random images whose mean is not zero."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(samples, channels, height, width, generator=generator) + 0.5


def learned(layers: nn.Module, maps: Tensor, bf16: bool = False) -> dict[str, Tensor]:
    """Outputs, gradients of all parameters, and running statistics, after one pass."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        outputs = layers(maps)
    towards = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3))
    outputs.backward(towards.to(outputs.dtype))
    gradients = {name: each.grad for name, each in layers.named_parameters()
                 if each.grad is not None}
    return {"outputs": outputs.detach(), **gradients, **dict(layers.named_buffers())}


def fused(layers: nn.Sequential) -> nn.Sequential:
    fuse(layers)
    assert type(layers) is FusedLayers and type(layers[0]) is FusedConv2d
    return layers


def is_one(layers: nn.Sequential, maps: Tensor) -> bool:
    """True if the layers ran as one: then nobody asked the convolution."""
    asked = []
    layers[0].forward = lambda *inputs: asked.append(1) or nn.Conv2d.forward(layers[0], *inputs)
    layers(maps)
    return not asked


def relative(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("channels", "filters", "height", "width", "samples"), [
    (3, 64, 32, 32, 4), (1, 32, 8, 8, 3), (3, 48, 6, 10, 5), (3, 16, 2, 2, 1), (1, 16, 4, 14, 2)])
def test_numbers_are_those_of_its_layers(channels: int, filters: int, height: int, width: int,
                                         samples: int, bf16: bool, bias: bool) -> None:
    layers, maps = block(channels, filters, bias), images(channels, height, width, samples)
    expected = learned(deepcopy(layers).double(), maps.double())
    assert is_one(fused(deepcopy(layers)), maps)
    found = learned(fused(layers), maps, bf16)
    assert found.keys() == expected.keys()
    assert found["outputs"].dtype == (torch.bfloat16 if bf16 else torch.float32)
    assert found["outputs"].is_contiguous(memory_format=torch.channels_last)
    for name, each in found.items():
        learns = name.endswith(("weight", "bias"))
        bound = BF16_ERROR if bf16 and (learns or name == "outputs") else 3e-6
        assert relative(each, expected[name]) < bound, name
        assert name == "outputs" or each.dtype in (torch.float32, torch.int64)


def test_the_gradient_of_a_bias_is_zero() -> None:
    layers = fused(block())
    assert not learned(layers, images())["0.bias"].any()


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("ratio", [0, 1, 3, 10, 100])
def test_images_far_from_zero_round_no_more_than_in_torchs_layers(ratio: int,
                                                                  is_flat: bool) -> None:
    """Their mean is `ratio` times their spread; of flat ones a pixel is nearly its neighbour.

    A variance is a small part of the second moments then.
    """
    generator, layers = torch.Generator().manual_seed(4), block()
    layers[1].momentum = 1.0
    maps = torch.randn(16, 3, 32, 32, generator=generator)
    if is_flat:  # and filters of edges, which see the differences between neighbours alone
        layers[0].weight.data -= layers[0].weight.data.mean((2, 3), keepdim=True)
        maps = 0.1 * maps + torch.randn(16, 3, 1, 1, generator=generator)
    maps += ratio
    exact = learned(deepcopy(layers).double(), maps.double())
    torchs = nn.Sequential(layers[0], nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU())
    torchs[1].load_state_dict(layers[1].state_dict())
    torchs[1].momentum = 1.0
    plain, found = learned(deepcopy(torchs), maps), learned(fused(layers), maps)
    assert relative(found["outputs"], exact["outputs"]) < 2 * relative(plain["outputs"],
                                                                       exact["outputs"])
    for name in ("1.weight", "1.running_mean", "1.running_var"):
        assert relative(found[name], exact[name]) < 1e-6, name


def test_a_maximum_of_exactly_zero_has_no_gradient() -> None:
    """ReLU has none there either. Maps of whole numbers and of their opposites have mean zero."""
    layers = block(bias=False)
    layers[0].weight.data = torch.randint(-1, 2, (64, 3, 3, 3), dtype=torch.float32)
    layers[1].bias.data.zero_()
    half = torch.randint(-1, 2, (4, 3, 8, 8), dtype=torch.float32)
    maps = torch.cat([half, -half])
    expected = learned(deepcopy(layers).double(), maps.double())
    assert (expected["outputs"] == 0).any()
    found = learned(fused(layers), maps)
    for name in ("0.weight", "1.weight", "1.bias"):
        assert relative(found[name], expected[name]) < 3e-6, name


@pytest.mark.parametrize("grey", [0.1, 0.3, 0.7, 0.9])
def test_one_grey_has_no_variance(grey: float) -> None:
    """Rounding could make it a little less than none."""
    layers = fused(block())
    layers[0].weight.data[..., [0, 2]] = layers[0].weight.data[:, :, [0, 2]] = 0
    layers[1].momentum = 1.0
    found = learned(layers, torch.full((3, 3, 8, 8), grey))
    assert (found["1.running_var"] >= 0).all() and (found["1.running_var"] < 1e-5).all()
    assert all(each.isfinite().all() for each in found.values())


def test_bits_are_the_same_with_any_number_of_threads() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(learned(fused(block()), images(samples=300)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(each[name], found[0][name]) for each in found for name in each)


def test_a_place_without_a_number_says_so() -> None:
    maps = images()
    maps[1, 0, 3, 3] = float("nan")
    assert fused(block())(maps).isnan().any()


def test_frozen_parameters_stay() -> None:
    layers = fused(block())
    layers[0].requires_grad_(False)
    assert learned(layers, images()).keys() >= {"1.weight", "1.bias"}
    assert layers[0].weight.grad is None


def test_keeps_no_map() -> None:
    kept: list[Tensor] = []
    maps = images(height=32, width=32)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each,
                                                  lambda each: each):
        outputs = fused(block())(maps)
    assert sum(each.nbytes for each in kept) < maps.nbytes + outputs.nbytes + 2**16



def hook_on(place: int):
    return lambda layers: layers[place].register_forward_hook(lambda *_: None) and images()


@pytest.mark.parametrize("change", [
    lambda layers: layers.eval() and images(), lambda layers: images().requires_grad_(),
    lambda layers: layers.double() and images().double(),
    lambda layers: synchronize_batch_norm(layers) and images(),
    hook_on(0), hook_on(1), hook_on(2)])
def test_elsewhere_it_is_its_layers(change) -> None:
    layers = block()
    one, other = fused(deepcopy(layers)), layers
    maps, same_maps = change(one), change(other)
    assert not is_one(one, maps)
    assert torch.equal(one(maps), other(same_maps))


def test_images_in_bf16_are_for_its_layers() -> None:
    layers, maps = fused(block()), images().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_one(layers, maps)


def test_one_image_alone_and_no_image_are_for_its_layers() -> None:
    layers = fused(block())
    for each in (block(), layers):
        with pytest.raises(RuntimeError, match="must match the size"):
            each(images()[0])
    assert layers(images()[:0]).shape == (0, 64, 4, 4)
    assert layers[1].running_mean.isfinite().all()


@pytest.mark.parametrize("place", [0, 1])
def test_parameters_of_other_dtypes_are_for_its_layers(place: int) -> None:
    """Read as float they would be other numbers."""
    layers = fused(block())
    layers[place].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_one(layers, images())


def test_odd_sides_are_pooled_by_its_layers() -> None:
    assert not is_one(fused(block()), images(height=7))
    assert fused(block())(images(height=7)).shape == (3, 64, 3, 4)


def test_without_a_compiler_it_is_its_layers(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda: Compiled(None, "there is no C++ compiler"))
    assert not is_one(fused(block()), images())


@pytest.mark.parametrize("change", [
    {0: nn.Conv2d(3, 64, 5, padding=2)}, {0: nn.Conv2d(4, 64, 3, padding=1)},
    {0: nn.Conv2d(3, 40, 3, padding=1), 1: PooledBatchNorm2d(40)}, {1: nn.BatchNorm2d(64)},
    {1: PooledBatchNorm2d(64, size=4)}, {2: nn.GELU()}])
def test_other_layers_are_no_first_block(change) -> None:
    layers = block()
    assert list(fusable(layers).values()) == [layers]
    for place, layer in change.items():
        layers[place] = layer
    assert not fusable(layers)


def test_only_the_first_layers_of_a_part_count() -> None:
    assert not fusable(nn.Sequential(nn.Identity(), *block()))
    assert not fusable(nn.Sequential(*block()[:2]))


def test_only_the_first_convolution_sees_images() -> None:
    assert not fusable(nn.Sequential(nn.Conv2d(3, 3, 1), block()))


def test_a_model_is_plain_again_when_it_is_exported() -> None:
    model = VGG11()
    use_fast_convolutions(model, (3, 32, 32), 256, Precision(), "fused" + 7 * " library")
    assert algorithms(model) == "fused" + 7 * " library"
    assert type(model.features) is FusedLayers
    plain = in_plain_layers(model)
    assert {type(layer).__module__.split(".")[0] for layer in plain.features.modules()} == {"torch"}
    maps = images(height=32, width=32)
    torch.testing.assert_close(plain.eval()(maps), model.eval()(maps))


def test_where_no_time_was_measured_it_is_not_chosen(monkeypatch) -> None:
    monkeypatch.setattr("common.arithmetic.choice.instruction_sets", lambda: "AVX512")
    shape = Shape(3, 64, 32, 256, "float32")
    assert by_rule(shape) == "fused"
    assert by_rule(shape._replace(size=64)) == "library"
    monkeypatch.setattr("common.arithmetic.choice.instruction_sets", lambda: "AVX2")
    assert by_rule(shape) == "library"
