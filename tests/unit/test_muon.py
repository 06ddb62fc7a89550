"""Muon: orthogonal steps for hidden convolutions, Nesterov's for the rest.

Mutations that turn this red: a repetition more or less, or another coefficient; leave out the clamp
of a norm; write the step in another order than the matrix was read in; leave the weight's norm
alone; give the momentum instead of Nesterov's direction; decay an orthogonal group; take the first
convolution among the hidden ones, or one without batch norm; multiply in bf16 whatever the run's
precision.
"""

import pytest
import torch
from torch import nn

from common.core.precision import Precision
from common.model.vgg11 import VGG11
from common.options.command_line import parse_command_line
from common.step.muon import Muon, orthogonalised
from common.step.optimizers import create_optimizer, hidden_convolutions

RATE, KEPT = 0.3, 0.8
# Written again, so that a change of what is learned shows here.
LINEAR, CUBIC, QUINTIC, REPETITIONS = 3.4445, -4.7750, 2.0315, 3


def by_singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """The same, as it is defined: the polynomial of each singular value."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    for _ in range(REPETITIONS):
        values = LINEAR * values + CUBIC * values ** 3 + QUINTIC * values ** 5
    return left @ torch.diag(values) @ right


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("shape", [(4, 30), (30, 4), (6, 6), (1, 5)])
def test_it_is_the_polynomial_of_the_singular_values(shape):
    matrix = random(*shape)
    found = orthogonalised(matrix, torch.float64)
    torch.testing.assert_close(found, by_singular_values(matrix), rtol=0, atol=1e-12)
    torch.testing.assert_close(orthogonalised(matrix * 1e3, torch.float64), found)


def test_singular_values_come_out_about_one_and_in_bf16_nearly_so():
    matrix = random(16, 200) * torch.logspace(0, -1, 200, dtype=torch.float64)
    exact = orthogonalised(matrix, torch.float64)
    values = torch.linalg.svdvals(exact)
    assert 0.65 < values.min() and values.max() < 1.25
    rounded = orthogonalised(matrix.float(), torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded.double() - exact).norm() / exact.norm() < 0.02


def test_a_gradient_of_zeros_gives_no_step():
    assert torch.equal(orthogonalised(torch.zeros(3, 5), torch.float32), torch.zeros(3, 5))
    weight = nn.Parameter(torch.zeros(3, 2, 3, 3))
    weight.grad = torch.zeros_like(weight)
    Muon([{"params": [weight], "orthogonal": True}], RATE, KEPT, 0.0, torch.float32).step()
    assert torch.equal(weight, torch.zeros(3, 2, 3, 3))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_steps_are_those_of_the_definition(memory):
    start, gradients = random(6, 4, 3, 3), [random(6, 4, 3, 3) * scale for scale in (1, -2, 3)]
    weight = nn.Parameter(start.clone(memory_format=memory))
    optimizer = Muon([{"params": [weight], "orthogonal": True}], RATE, KEPT, 0.1, torch.float64)
    expected, momentum = start, torch.zeros_like(start)
    for gradient in gradients:
        weight.grad = gradient.clone(memory_format=memory)
        optimizer.step()
        momentum = KEPT * momentum + gradient
        direction = (gradient + KEPT * momentum).permute(0, 2, 3, 1).reshape(6, -1)
        step = by_singular_values(direction).view(6, 3, 3, 4).permute(0, 3, 1, 2)
        expected = expected * 6 ** 0.5 / expected.norm() - RATE * step
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_the_other_parameters_take_nesterovs_steps():
    ours, theirs = (nn.Parameter(random(5, 3).clone()) for _ in range(2))
    optimizers = [Muon([{"params": [ours]}], RATE, KEPT, 0.1, torch.float64),
                  torch.optim.SGD([theirs], RATE, KEPT, weight_decay=0.1, nesterov=True)]
    for scale in (1, -2, 3):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = random(5, 3) * scale
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_hidden_convolutions_stand_before_a_batch_norm_and_after_the_first():
    model = VGG11()
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert hidden_convolutions(model) == {id(layer.weight) for layer in convolutions[1:]}
    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.ReLU(),
                         nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    assert hidden_convolutions(bare) == {id(bare[4].weight)}


def test_flags_reach_it():
    settings = parse_command_line("PartOne", ["--optimizer", "muon", "--learning-rate", "0.3",
                                              "--weight-decay", "0.01", "--momentum", "0.7"])[0]
    model = VGG11()
    groups = create_optimizer(settings, model).param_groups
    assert {group["lr"] for group in groups} == {0.3}
    assert {group["momentum"] for group in groups} == {0.7}
    decayed = {id(p): group["weight_decay"] for group in groups if not group["orthogonal"]
               for p in group["params"]}
    assert set(decayed.values()) == {0.01} and len(decayed) == 34 - 7
    orthogonal = [p for group in groups if group["orthogonal"] for p in group["params"]]
    assert {id(p) for p in orthogonal} == hidden_convolutions(model)


@pytest.mark.parametrize("name, products", [
    ("float64", torch.float64), ("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_are_rounded_as_the_run_is(name, products):
    """In float64 above all: by rounded products equal runs would part."""
    settings = parse_command_line("PartOne", ["--optimizer", "muon", "--precision", name])[0]
    steps = {}
    for precision in (None, torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3),
                              nn.BatchNorm2d(6)).to(Precision(name).dtype)
        optimizer = create_optimizer(settings, model)
        if precision is not None:
            optimizer = Muon(optimizer.param_groups, 0.1, 0.9, 0.0, precision)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        steps[precision] = model[2].weight.detach()
    same = [precision for precision in list(steps)[1:] if torch.equal(steps[precision],
                                                                      steps[None])]
    assert same == [products]
