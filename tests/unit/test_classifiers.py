"""--model and --image-size: any classifier by name, for folders of images of any size.

Mutations that turn this red: no `compared` in the rows; no _with_sample_dropout; no try around the
dry pass; leave out _check_model; `has_batch_norm` of the table's row.
"""

import sys

import numpy as np
import pytest
import torch

from common.core.failures import UsageError
from common.model.batch_norm import SynchronizedBatchNorm2d, synchronize_batch_norm
from common.model.classifiers import create_classifier
from common.model.dropout import DropoutPlan, SampleDepth, SampleDropout
from common.model.vgg11 import VGG11
from common.options.command_line import parse_command_line
from common.options.workloads import workload_of
from common.settings.settings import Settings
from tests.facts import says
from tests.small_files import write_image_folder

FOLDER = "--workload image-folder "


def settings_of(words: str, part: str = "PartOne") -> Settings:
    return parse_command_line(part, (FOLDER + words).split())[0]


@pytest.mark.parametrize("name, size", [
    ("vgg11", 32), ("vgg11", 70), ("small-cnn", 32), ("small-cnn", 45), ("resnet18", 32),
    ("mobilenet_v3_small", 40), ("squeezenet1_1", 32), ("googlenet", 32), ("vit_b_16", 32)])
def test_models_give_a_score_for_each_class(name, size):
    model = create_classifier(3, name, size).train()
    scores = model(torch.rand(2, 3, size, size))
    assert scores.shape == (2, 3) and scores.isfinite().all()


def test_vgg11_is_what_it_was():
    torch.manual_seed(1)
    ours = create_classifier(10)
    torch.manual_seed(1)
    before, images = VGG11(10, last_scale=1.0), torch.rand(2, 3, 32, 32)
    assert torch.equal(before.classifier(before.features(images).flatten(1)), ours(images))


@pytest.mark.parametrize("words, facts", [
    ("--model resnt18", ["resnt18", "vgg11", "small-cnn", "resnet18"]),
    ("--model fasterrcnn_resnet50_fpn", ["fasterrcnn_resnet50_fpn", "torchvision.models"]),
    ("--model vgg11 --image-size 16", ["vgg11", "16x16", "--image-size"]),
    ("--model squeezenet1_1 --image-size 9", ["squeezenet1_1", "9x9"]),
    ("--model vit_b_16 --image-size 50", ["vit_b_16", "50x50"]),
    ("--image-size 0", ["--image-size", 0, 1]),
    ("--model small-cnn --optimizer muon", ["--optimizer muon", "--workload image-folder"]),
    ("--workload digits-vgg11 --model resnet18", ["--model resnet18", "--workload digits-vgg11"]),
    ("--workload cifar10-vgg11 --image-size 64",
     ["--image-size 64", "--workload cifar10-vgg11"])])
def test_what_cannot_be_meant_is_refused_before_data_are_loaded(words, facts):
    with pytest.raises(UsageError) as raised:
        settings_of(words)
    assert says(raised.value, *facts) and raised.value.exit_code == 2


@pytest.mark.parametrize("words", ["--parallel model-split", "--init whitened"])
def test_a_model_that_is_no_chain_is_not_cut_and_not_whitened(words):
    with pytest.raises(UsageError) as raised:
        settings_of(f"{words} --model resnet18", "PartThree")
    assert says(raised.value, words, "--model resnet18", "vgg11", "small-cnn")
    assert settings_of(f"{words} --model small-cnn", "PartThree")


def test_a_machine_without_torchvision_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError) as raised:
        create_classifier(2, "resnet18")
    assert says(raised.value, "torchvision", "--model", "vgg11", "small-cnn")


def test_the_folder_is_read_and_the_model_built_as_the_settings_say(tmp_path):
    for split in ("train", "test"):
        write_image_folder(tmp_path / split, 3)
    row = workload_of(settings_of("--model resnet18 --image-size 24"))
    dataset = row.load("train", tmp_path)
    assert dataset.inputs.shape == (6, 24, 24, 3) and row.has_batch_norm
    model = row.build(dataset.class_names)
    assert type(model).__name__ == "ResNet" and model.fc.out_features == 2
    assert not workload_of(settings_of("--model small-cnn")).has_batch_norm


def test_they_decide_what_is_learned_and_the_usual_ones_need_no_flags():
    plain, usual = settings_of(""), settings_of("--model vgg11 --image-size 32")
    other = settings_of("--model resnet18 --image-size 64")
    assert not usual.changes_since(plain.as_json())
    old = {name: value for name, value in plain.as_json().items()
           if name not in ("model", "image_size")}
    assert not usual.changes_since(old)
    size, model = other.changes_since(old)
    assert says(size, "image_size", None, 64) and says(model, "model", None, "resnet18")
    assert {"model", "image_size"} <= other.shared().keys()
    assert says(other.said(), "resnet18", "64x64")


def test_batch_norm_of_others_models_can_be_synchronised():
    model = synchronize_batch_norm(create_classifier(2, "resnet18"))
    kinds = {type(layer) for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)}
    assert kinds == {SynchronizedBatchNorm2d}


@pytest.mark.parametrize("name, kind", [("mobilenet_v3_small", SampleDropout),
                                        ("efficientnet_b0", SampleDepth)])
def test_what_others_models_drop_belongs_to_the_samples(name, kind):
    model = create_classifier(2, name, 32)
    kinds = {type(layer) for layer in model.modules()}
    assert kind in kinds and not {"Dropout", "StochasticDepth"} & {k.__name__ for k in kinds}


def test_stochastic_depth_drops_whole_samples_the_same_in_any_company():
    layer, inputs = SampleDepth(0.5), torch.rand(40, 2, 3, 3) + 1
    plan = DropoutPlan(layer, seed=7)
    plan.set_samples(1, np.arange(40))
    outputs = layer(inputs)
    kept = outputs[:, 0, 0, 0] > 0
    assert torch.equal(outputs[kept], inputs[kept] * 2) and not outputs[~kept].any()
    assert 10 < int(kept.sum()) < 30
    plan.set_samples(1, np.arange(20, 40))
    assert torch.equal(layer(inputs[20:]), outputs[20:])
    plan.set_samples(1, None)
    assert set((layer(inputs) / inputs).mean((1, 2, 3)).round().tolist()) == {0.0, 2.0}
