"""Dropout masks belong to samples: they depend on nothing but seed, epoch, layer, sample and unit.

Mutations that turn this red: drop any of seed, epoch, layer, indices from kept_units; `>` the
other way round; no scaling in SampleDropout; masks in evaluation mode; layers that share a number.
"""

import numpy as np
import pytest
import torch

from common.data.epoch_plan import kept_units
from common.model.dropout import DropoutPlan, SampleDropout
from common.model.small_models import SpiralMlp
from PartThree.data_parallel import deal_samples

SAMPLES = np.array([5, 0, 17, 3])


def test_a_samples_mask_does_not_depend_on_the_others():
    whole = kept_units(1, 2, 3, SAMPLES, 50, 0.4)
    assert np.array_equal(whole[2:3], kept_units(1, 2, 3, SAMPLES[2:3], 50, 0.4))


@pytest.mark.parametrize("other", [(9, 2, 3, SAMPLES), (1, 9, 3, SAMPLES), (1, 2, 9, SAMPLES),
                                   (1, 2, 3, SAMPLES + 1)], ids=str)
def test_it_depends_on_each_of_the_rest(other):
    assert not np.array_equal(kept_units(1, 2, 3, SAMPLES, 50, 0.4), kept_units(*other, 50, 0.4))


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 0.9])
def test_as_many_units_are_dropped_as_asked_for(probability):
    kept = kept_units(1, 1, 0, np.arange(400), 500, probability)
    assert kept.mean() == pytest.approx(1 - probability, abs=0.005)
    for axis in (0, 1):  # no sample and no unit stands out: standard deviation 0.022 at most
        assert np.abs(kept.mean(axis=axis) - (1 - probability)).max() < 0.11


def test_neighbouring_units_samples_and_layers_are_independent():
    kept = [kept_units(1, 1, layer, np.arange(300), 301, 0.5).astype(float) for layer in (0, 1)]
    pairs = [(kept[0][:, 1:], kept[0][:, :-1]), (kept[0][1:], kept[0][:-1]), (kept[0], kept[1])]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


def told(model, indices, epoch=1):
    DropoutPlan(model, seed=7).set_samples(epoch, indices)
    return model


def test_the_layer_scales_what_it_keeps_in_any_memory_format():
    inputs = torch.rand(4, 3, 5, 6) + 1
    layer = told(SampleDropout(0.25), SAMPLES)
    outputs = layer(inputs)
    kept = torch.from_numpy(kept_units(7, 1, 0, SAMPLES, 90, 0.25)).view(4, 3, 5, 6)
    assert torch.allclose(outputs, torch.where(kept, inputs / 0.75, 0.0))
    assert torch.equal(layer(inputs.to(memory_format=torch.channels_last)), outputs)


def test_evaluation_drops_nothing():
    inputs = torch.ones(4, 9)
    assert torch.equal(told(SampleDropout(0.5), SAMPLES).eval()(inputs), inputs)


def test_layers_of_one_model_drop_different_units():
    model = torch.nn.Sequential(SampleDropout(0.5), SampleDropout(0.5))
    outputs = told(model, SAMPLES)(torch.ones(4, 200))
    assert outputs.count_nonzero() == pytest.approx(200, abs=60)  # a quarter of 800, not a half


def test_a_loader_that_knows_no_samples_gets_torchs_dropout():
    layer = told(told(SampleDropout(0.5), SAMPLES), None)
    torch.manual_seed(1)
    one, other = layer(torch.ones(4, 90)), layer(torch.ones(4, 90))
    assert not torch.equal(one, other)


def test_data_parallel_replicas_get_the_samples_of_their_part():
    whole, replicas = told(SpiralMlp(), SAMPLES), [told(SpiralMlp(), SAMPLES) for _ in range(2)]
    for replica in replicas:
        replica.load_state_dict(whole.state_dict())
    deal_samples(replicas, [3, 1])
    points = torch.rand(4, 2, 1, 1)
    parts = torch.cat([replicas[0](points[:3]), replicas[1](points[3:])])
    assert torch.allclose(parts, whole(points))
