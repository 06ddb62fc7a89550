"""The mean of the weights: what it holds, when it moves, and that training never notices.

Mutations that turn this red: average from the initial weights on; take up every step; leave the
buffers out; forget to put the weights back; put back references instead of copies.
"""

import pytest
import torch
from torch import nn

from common.evaluation import Mirrored
from common.options.command_line import parse_command_line
from common.step.weight_average import NoAverage, WeightAverage, create_average
from tests.small import small_model

KEPT = 0.6


def settings(kept: float):
    return parse_command_line("PartOne", ["--weight-average", str(kept)])[0]


def model() -> nn.Module:
    return small_model(torch.float64, nn.BatchNorm2d)


def fill(net: nn.Module, value: float) -> None:
    for tensor in net.state_dict().values():
        tensor.fill_(value)


def test_after_steps_1_6_11_it_takes_up_the_weights_at_first_as_a_plain_mean():
    net, means = model(), []
    average = WeightAverage(net, KEPT)
    for step in range(1, 17):
        fill(net, step)
        average.after_step(step, net)
        means.append(float(average.state()["layers.0.weight"].mean()))
    two, three = (1 + 6) / 2, KEPT * (1 + 6) / 2 + (1 - KEPT) * 11
    four = KEPT * three + (1 - KEPT) * 16
    assert means == pytest.approx([1] * 5 + [two] * 5 + [three] * 5 + [four])
    assert float(average.state()["layers.1.running_mean"].mean()) == pytest.approx(four)
    assert int(average.state()["layers.1.num_batches_tracked"]) == 16


def test_applied_shows_the_mean_and_then_the_same_tensors_as_before():
    net = model()
    average = WeightAverage(net, KEPT)
    fill(net, 7)
    before = {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}
    with average.applied(net):
        assert not bool((net.layers[0].weight == 7).any())
        assert torch.equal(net.layers[1].running_var, torch.ones(5, dtype=torch.float64))
    assert all(bool((tensor == 7).all()) for tensor in net.state_dict().values())
    assert before == {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}
    with pytest.raises(RuntimeError), average.applied(net):
        raise RuntimeError
    assert bool((net.layers[0].weight == 7).all())


def test_it_goes_on_from_what_was_saved():
    net = model()
    saved = {name: torch.full_like(tensor, 3) for name, tensor in net.state_dict().items()}
    average = create_average(settings(KEPT), net, saved)
    fill(net, 8)
    average.after_step(11, net)
    assert float(average.state()["layers.0.weight"].mean()) == pytest.approx(3 * KEPT + 8 * 0.4)


def test_without_it_there_is_nothing_to_remember():
    average = create_average(settings(0), model(), {"layers.0.weight": torch.ones(1)})
    assert type(average) is NoAverage and average.state() == {}


def test_mirrored_scores_are_the_mean_of_both_sides():
    net, images = model().eval(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    expected = (net(images) + net(images.flip(3))) / 2
    torch.testing.assert_close(Mirrored(net)(images), expected, rtol=0, atol=1e-15)
