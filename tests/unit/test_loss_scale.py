"""The loss scale of fp16: exact where nothing overflows, a skipped step where something does.

Mutations that turn this red: keep the gradients of a step that is skipped; no unscale_; no update;
drop the check of SMALLEST; let `scaled` return its argument; restore nothing; drop _check_fp16's
look at cross-step.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from common.step.gradient_check import NotFinite, located, require_finite
from common.step.loss_scale import LossScale
from tests.facts import says

CPU = torch.device("cpu")


def scaled(optimizer: torch.optim.Optimizer) -> LossScale:
    scale = LossScale()
    scale.attach(optimizer, CPU)
    return scale


def pair() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), 0.1, 0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, scale: LossScale,
         factor: float = 1.0) -> None:
    optimizer.zero_grad()
    scale.scaled(model(torch.ones(2, 4)).square().mean() * factor).backward()
    optimizer.step()


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each.clone() for each in (*model.parameters(), *(
        state["momentum_buffer"] for state in optimizer.state.values()))]


def test_a_scaled_step_is_the_step_to_the_bit():
    """The scale is a power of two."""
    (model, optimizer), (other, plain) = pair(), pair()
    scale = scaled(optimizer)
    for _ in range(3):
        step(model, optimizer, scale)
        step(other, plain, LossScale())
    assert all(map(torch.equal, values(model, optimizer), values(other, plain)))
    assert scale.state()["scale"] == 2.0 ** 16 and scale.skipped() == ""


def test_gradients_too_small_for_fp16_arrive():
    found = []
    for scale in (LossScale(), scaled(pair()[1])):
        model, _ = pair()
        with torch.autocast("cpu", torch.float16):
            outputs = model(torch.ones(2, 4))
        scale.scaled(outputs.float().sum() * 1e-9).backward()
        found.append(bool(model.weight.grad.any()))
    assert found == [False, True]


def test_a_step_that_overflows_changes_nothing_but_the_scale():
    model, optimizer = pair()
    scale = scaled(optimizer)
    step(model, optimizer, scale)
    before = values(model, optimizer)
    step(model, optimizer, scale, 1e38)
    assert all(map(torch.equal, values(model, optimizer), before))
    assert scale.state()["scale"] == 2.0 ** 15 and says(scale.skipped(), 32768)
    step(model, optimizer, scale)
    assert not torch.equal(values(model, optimizer)[0], before[0]) and scale.skipped() == ""


def test_a_step_without_gradients_is_none():
    model, optimizer = pair()
    scale = scaled(optimizer)
    optimizer.step()
    assert scale.state()["_growth_tracker"] == 0


def test_a_restored_scale_goes_on_where_it_was():
    model, optimizer = pair()
    first = scaled(optimizer)
    for factor in (1.0, 1e38, 1.0):
        step(model, optimizer, first, factor)
    second = scaled(pair()[1])
    second.restore(copy.deepcopy(first.state()))
    assert second.state() == first.state()
    assert (second.state()["scale"], second.state()["_growth_tracker"]) == (2.0 ** 15, 1)
    LossScale().restore(first.state())  # a run that goes on in another precision


def test_a_gradient_that_overflows_at_the_smallest_scale_ends_the_run():
    model, optimizer = pair()
    scale = scaled(optimizer)
    scale.restore({**scale.state(), "scale": 1.0})
    with pytest.raises(NotFinite) as raised:
        step(model, optimizer, scale, float("inf"))
    assert says(raised.value, "gradient", "scale", 1)


def test_gradients_may_overflow_under_a_scale_and_nowhere_else():
    bad = [torch.tensor([float("inf")])]
    with located(nn.Linear(1, 1), str, is_scaled=True):
        require_finite(bad)
    with pytest.raises(NotFinite):
        require_finite(bad)
