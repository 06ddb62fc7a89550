"""The bilinear algorithms against torch's own convolution, forward and backward.

Mutations that turn this red: any number in ALGORITHMS; the usual points 1 and 2 for 3/4 and 3/2
(rounding); leave out `bias`, or the gradient of any input; `before=1` for "toeplitz"; spread by
`algorithm.inputs` in backward; ROWS in one of the two slices alone; round the filters before they
are transformed; drop autocast(enabled=False).
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from common.arithmetic import convolution as fast_convolution
from common.arithmetic.bilinear import ALGORITHMS, fits
from common.arithmetic.convolution import FastConv2d, compute_by
from common.arithmetic.tile_transforms import spread

CASES = [(name, size) for name in ALGORITHMS for size in (2, 4, 8, 12) if fits(name, size)]


def layer(name: str, bias: bool = True, dtype=torch.float64, inputs: int = 5,
          outputs: int = 3) -> FastConv2d:
    torch.manual_seed(1)
    made = FastConv2d(inputs, outputs, 3, padding=1, bias=bias, dtype=dtype)
    made.algorithm = name
    return made.to(memory_format=torch.channels_last)


def maps(size: int, samples: int = 7, channels: int = 5, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    made = torch.randn(samples, channels, size, size, generator=generator, dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last).requires_grad_()


def gradients(outputs: torch.Tensor, inputs) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad((outputs * weights).sum(), inputs)


def test_which_maps_each_algorithm_fits():
    assert [(name, size) for name in ALGORITHMS for size in range(1, 9) if fits(name, size)] == [
        ("toeplitz", 2), ("winograd-2", 2), ("winograd-2", 4), ("winograd-2", 6),
        ("winograd-2", 8), ("winograd-4", 4), ("winograd-4", 8)]


@pytest.mark.parametrize("rows", [256, 3])
@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_same_numbers_as_torch_in_float64(name, size, rows, monkeypatch):
    monkeypatch.setattr(fast_convolution, "ROWS", rows)
    fast, x = layer(name), maps(size)
    wanted, got = conv2d(x, fast.weight, fast.bias, padding=1), fast(x)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert got.stride() == wanted.stride()
    leaves = [x, *fast.parameters()]
    for one, other in zip(gradients(got, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradcheck(name):
    size = 4 if name == "winograd-4" else 2
    fast = layer(name, inputs=2, outputs=2)
    x = maps(size, 2, 2)

    def convolve(x, weight, bias):
        return fast_convolution._Convolve.apply(x, weight, bias, name)
    assert torch.autograd.gradcheck(convolve, (x, fast.weight, fast.bias))
    assert torch.autograd.gradcheck(lambda x, weight: convolve(x, weight, None), (x, fast.weight))


def test_only_what_is_asked_for_is_computed():
    fast, x = layer("toeplitz"), maps(2)
    fast.weight.requires_grad_(False)
    of_x, of_bias = gradients(fast(x), [x, fast.bias])
    wanted = gradients(conv2d(x, fast.weight, fast.bias, padding=1), [x, fast.bias])
    torch.testing.assert_close((of_x, of_bias), wanted)
    fast.weight.requires_grad_(True)
    of_weight, = gradients(fast(x.detach()), [fast.weight])
    assert of_weight.abs().sum() > 0


def test_a_batch_of_no_samples_has_gradients_of_zero():
    fast, x = layer("toeplitz"), maps(2, samples=0)
    of_x, of_weight, of_bias = gradients(fast(x), [x, fast.weight, fast.bias])
    assert len(of_x) == 0 and not of_weight.any() and not of_bias.any()


@pytest.mark.parametrize("shape", [(7, 5, 3, 3), (7, 5, 2, 4), (5, 2, 2)])
def test_other_maps_go_to_the_library(shape):
    fast, x = layer("toeplitz"), torch.ones(shape, dtype=torch.float64)
    assert torch.equal(fast(x), conv2d(x, fast.weight, fast.bias, padding=1))


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).detach().norm() / wanted.detach().norm())


@pytest.mark.parametrize(("name", "size", "times"), [
    ("toeplitz", 2, 3), ("winograd-2", 4, 2), ("winograd-4", 4, 6), ("winograd-4", 8, 6)])
def test_rounding_in_float32_beside_the_librarys(name, size, times):
    """Relative error against float64, with 128 channels: at most `times` what torch's own makes."""
    fast, x = layer(name, True, torch.float32, 128, 128), maps(size, 32, 128, torch.float32)
    leaves = [x, *fast.parameters()]
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = conv2d(*exact_leaves, padding=1)
    wanted = [exact, *gradients(exact, exact_leaves)]
    found, plain = ([outputs, *gradients(outputs, leaves)]
                    for outputs in (fast(x), conv2d(*leaves, padding=1)))
    for one, other, truth in zip(found, plain, wanted, strict=True):
        assert error(one, truth) < times * error(other, truth)


@pytest.mark.parametrize(("name", "size"), [("toeplitz", 2), ("winograd-2", 4)])
def test_bf16_by_autocast(name, size):
    """Maps travel in bf16; weights, and the transform of the filters, stay in float32."""
    fast, x = layer(name, True, torch.float32, 128, 128), maps(size, 32, 128, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = fast(x)
        plain = conv2d(x, fast.weight, fast.bias, padding=1)
    assert outputs.dtype == torch.bfloat16
    leaves = [x, *fast.parameters()]
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = conv2d(*exact_leaves, padding=1)
    wanted = [exact, *gradients(exact, exact_leaves)]
    for one, other, truth in zip([outputs, *gradients(outputs, leaves)],
                                 [plain, *gradients(plain, leaves)], wanted, strict=True):
        assert error(one, truth) < 4 * error(other, truth) < 0.03
        assert one.dtype == other.dtype


@pytest.mark.parametrize("name", ALGORITHMS)
def test_filters_are_transformed_in_float32_and_rounded_once(name):
    """Sums of taps that are rounded already would cost bf16 another bit."""
    size = ALGORITHMS[name].inputs.tile
    fast, x = layer(name, dtype=torch.float32), maps(size, dtype=torch.float32)
    filters = ALGORITHMS[name].filters
    exact = spread(fast.weight, filters, torch.float32)
    assert torch.equal(spread(fast.weight, filters, torch.bfloat16), exact.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = fast(x)
    by_hand = fast_convolution._Convolve.apply(x.bfloat16(), fast.weight, fast.bias, name)
    assert torch.equal(under_autocast, by_hand)


def test_it_is_a_convolution_with_the_very_same_parameters():
    assert issubclass(FastConv2d, nn.Conv2d)
    assert list(layer("toeplitz").state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("autocast", [False, True])
def test_backward_keeps_nothing_that_it_can_make_again(autocast):
    """Transformed filters are four times the weights, transformed maps twice the maps."""
    layer = nn.Conv2d(8, 8, 3, padding=1)
    compute_by("winograd-4", layer)
    saved = []
    maps = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor,
                                                  lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            layer(maps)
    assert {tuple(tensor.shape) for tensor in saved} == {(2, 8, 4, 4), (8, 8, 3, 3)}
