"""A recipe overrides the workload, a flag the recipe; and each of its numbers reaches its object.

Mutations that turn this red: look in the row before the recipe; take flags first but not 0; put
batch norm's scales among the decayed; leave "nesterov" to momentum alone; smooth the evaluated
loss; take `learned` out of the row of a recipe's setting.
"""

import pytest
import torch
from torch import nn

from common.core.failures import UsageError
from common.model.vgg11 import VGG11
from common.options.command_line import parse_command_line
from common.options.workloads import RECIPES, create_augment, find_row
from common.settings.settings import Settings
from common.step.optimizers import create_criterion, create_optimizer, without_smoothing
from tests.facts import says
from tests.small import small_model


def settings(*flags: str) -> Settings:
    return parse_command_line("PartOne", flags)[0]


def test_the_course_recipe_is_the_default_and_changes_nothing():
    assert settings() == settings("--recipe", "course")
    assert RECIPES["course"] == {}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_fields_are_workload_defaults_and_decide_what_is_learned(name):
    for field, value in RECIPES[name].items():
        assert type(getattr(Settings, field)) is type(value), field
        assert Settings.rows()[field].learned, field
        assert getattr(settings("--recipe", name), field) == value


def test_flags_override_the_recipe_and_the_recipe_the_workload():
    recipe, digits = RECIPES["record"], settings("--workload", "digits-vgg11")
    told = settings("--recipe", "record", "--workload", "digits-vgg11", "--label-smoothing", "0",
                    "--flips", "random", "--epochs", "2")
    assert (told.label_smoothing, told.flips, told.epochs) == (0.0, "random", 2)
    assert told.momentum == recipe["momentum"] != settings().momentum
    assert told.crop_padding == recipe["crop_padding"] != digits.crop_padding
    assert told.as_json()["recipe"] == "record"


def test_an_unknown_recipe_is_one_sentence():
    with pytest.raises(UsageError) as refused:
        find_row("recipe", "cake")
    assert says(refused.value, "cake", "course", "record")
    with pytest.raises(UsageError) as refused:
        settings("--recipe", "recrod")
    assert says(refused.value, "--recipe", "recrod", "course", "record")


@pytest.mark.parametrize("name", ["decay_on", "label_smoothing", "flips",
                                  "crop_padding", "cutout", "init"])
def test_what_decides_what_is_learned_must_not_change_on_resume(name):
    assert name in settings().trajectory()


def test_decay_on_weights_spares_biases_and_batch_norm():
    model = VGG11()
    optimizer = create_optimizer(settings("--decay-on", "weights", "--weight-decay", "0.01"), model)
    decay = {id(parameter): group["weight_decay"] for group in optimizer.param_groups
             for parameter in group["params"]}
    expected = {id(parameter): 0.0 for parameter in model.parameters()}
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            expected[id(layer.weight)] = 0.01
    assert decay == expected
    everywhere = create_optimizer(settings("--weight-decay", "0.01"), model).param_groups
    assert len(everywhere) == 1 and len(everywhere[0]["params"]) == 34


def test_crop_padding_overrides_the_workloads_and_may_be_none():
    assert create_augment(settings()).settings.crop_padding == 4
    assert create_augment(settings("--crop-padding", "0")).settings.crop_padding == 0


def test_nesterov_is_torchs():
    assert create_optimizer(settings("--optimizer", "nesterov"),
                            small_model()).param_groups[0]["nesterov"]
    assert not create_optimizer(settings(), small_model()).param_groups[0]["nesterov"]


def test_smoothing_is_torchs_in_training_and_absent_in_evaluation():
    scores, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    criterion = create_criterion(settings("--label-smoothing", "0.2"), "cross-entropy")
    smoothed = nn.functional.cross_entropy(scores, targets, label_smoothing=0.2)
    plain = nn.functional.cross_entropy(scores, targets)
    assert torch.equal(criterion(scores, targets), smoothed) and not torch.equal(smoothed, plain)
    assert torch.equal(without_smoothing(criterion)(scores, targets), plain)
    other = create_criterion(settings(), "negative-log-likelihood")
    assert isinstance(other, nn.NLLLoss) and without_smoothing(other) is other


def test_a_criterion_that_is_not_a_mean_is_refused():
    mean = torch.nn.CrossEntropyLoss()
    assert create_criterion(settings(), mean) is mean
    with pytest.raises(UsageError, match="reduction='sum'"):
        create_criterion(settings(), torch.nn.CrossEntropyLoss(reduction="sum"))
