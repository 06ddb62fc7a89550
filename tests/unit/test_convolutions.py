"""The choice of algorithms: which layers, by which rule, the same on every rank and every day.

Mutations that turn this red: FEWEST_CHANNELS = 1; drop any condition of _is_plain_3x3; leave out
the hooks' removal, or model.train(was_training); drop a line of by_rule, or let it look at the
threads; let every rank choose for itself; leave out algorithms() in ran_on; leave out
`how == LIBRARY`; pass "library" on in create_training, or the shard in place of the batch.
"""

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from common.arithmetic import choice, kernels
from common.arithmetic.choice import (
    Shape,
    algorithms,
    by_rule,
    products,
    rule_in_words,
    use_fast_convolutions,
)
from common.arithmetic.compiled import Compiled
from common.cluster.node import Node
from common.core.precision import Precision
from common.core.world import World
from common.data.dataset import ArrayDataset
from common.model.vgg11 import VGG11
from common.options.command_line import parse_command_line
from common.run.run import ran_on
from common.settings.settings import Settings
from common.setup import create_training
from tests.facts import says
from tests.ranks import run_ranks

IMAGE = (3, 32, 32)
FAST_VGG11 = "fused winograd-4 winograd-4 winograd-4 winograd-4 winograd-4 toeplitz toeplitz"
FEW_VGG11 = "fused winograd-4 winograd-4 winograd-4 winograd-2 winograd-2 toeplitz toeplitz"


@pytest.fixture(autouse=True)
def avx512(monkeypatch):
    """The rule's answers do not depend on the processor that runs the tests."""
    monkeypatch.setattr(choice, "instruction_sets", lambda: "AVX512")


@pytest.fixture
def vgg11() -> VGG11:
    return VGG11().to(memory_format=torch.channels_last)


def test_the_layers_of_vgg11_and_nothing_else_changes(vgg11):
    before = {name: id(value) for name, value in vgg11.named_parameters()}
    state = torch.random.get_rng_state()
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), "auto")
    assert algorithms(vgg11) == FAST_VGG11
    assert {name: id(value) for name, value in vgg11.named_parameters()} == before
    assert vgg11.training and torch.equal(state, torch.random.get_rng_state())
    assert not any(layer._forward_pre_hooks for layer in vgg11.modules())


def test_the_library_can_be_asked_for(vgg11):
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), "library")
    assert algorithms(vgg11) == "library"


def test_a_model_gives_the_same_scores_and_gradients(vgg11):
    vgg11 = vgg11.double()
    images = torch.randn(6, *IMAGE, dtype=torch.float64)
    found = []
    for how in ("library", "auto"):
        use_fast_convolutions(vgg11, IMAGE, 6, Precision("float64"), how)
        scores = vgg11(images)
        found.append([scores, *torch.autograd.grad(scores.square().sum(), vgg11.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("shape", "sets", "chosen"), [
    (Shape(512, 512, 2, 256, "float32"), "AVX512", "toeplitz"),
    (Shape(512, 512, 4, 256, "float32"), "AVX512", "winograd-4"),
    (Shape(512, 512, 4, 128, "bf16"), "AVX512", "winograd-4"),
    (Shape(512, 512, 4, 127, "bf16"), "AVX512", "winograd-2"),
    (Shape(128, 256, 8, 16, "float32"), "AVX512", "winograd-4"),
    (Shape(128, 256, 8, 256, "float64"), "AVX2", "winograd-4"),
    (Shape(128, 256, 8, 256, "bf16"), "AVX512 AMX", "library"),
    (Shape(128, 256, 8, 256, "float32"), "AVX512 AMX", "winograd-4"),
    (Shape(512, 512, 4, 256, "bf16"), "AVX512 AMX", "winograd-2"),
    (Shape(64, 128, 16, 256, "bf16"), "AVX512", "winograd-4"),
    (Shape(64, 128, 16, 256, "bf16"), "AVX512 AMX", "library"),
    (Shape(128, 256, 32, 256, "float32"), "AVX512", "library"),
    (Shape(128, 256, 6, 256, "float32"), "AVX512", "library"),
    (Shape(512, 512, 2, 256, "float32"), "DEFAULT", "library")])
def test_the_rule(shape, sets, chosen, monkeypatch):
    monkeypatch.setattr(choice, "instruction_sets", lambda: sets)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            assert by_rule(shape) == chosen
    finally:
        torch.set_num_threads(threads)


def test_the_rule_in_words(monkeypatch):
    first, second, third, fourth, others = rule_in_words("float32", 64).split(", ", 4)
    assert says(first, "toeplitz", "2x2") and says(second, "winograd-2", "4x4")
    assert says(third, "winograd-4", "8x8") and says(fourth, "winograd-4", "16x16")
    assert says(others, "fused", "AVX512") and "winograd" not in others
    monkeypatch.setattr(choice, "instruction_sets", lambda: "DEFAULT")
    rule = rule_in_words("float32", 64)
    assert says(rule, "DEFAULT") and not re.search("toeplitz|winograd|fused", rule)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_computes_alike(ranks):
    settings, _ = parse_command_line("PartTwo", [
        "--workload", "digits-vgg11", "--batch-size", "256", "--master-ip", "127.0.0.1",
        "--num-nodes", str(ranks), "--rank", "0"])
    node = Node(World(size=ranks), torch.device("cpu"), threads=1)
    model, _, _ = create_training(settings, images_of_digits(), node)
    assert algorithms(model) == FAST_VGG11


def images_of_digits() -> ArrayDataset:
    images = np.zeros((20, 32, 32, 3), dtype=np.uint8)
    return ArrayDataset(images, np.arange(20) % 10, tuple("0123456789"), "")


@pytest.mark.parametrize("change", [
    {"in_channels": 63}, {"out_channels": 32}, {"kernel_size": 5, "padding": 2}, {"stride": 2},
    {"dilation": 2}, {"groups": 2}, {"padding_mode": "reflect"}, {"padding": 0}])
def test_other_convolutions_are_left_alone(change):
    options = {"in_channels": 128, "out_channels": 128, "kernel_size": 3, "padding": 1} | change
    model = nn.Sequential(nn.Conv2d(**options))
    use_fast_convolutions(model, (options["in_channels"], 4, 4), 2, Precision(), "auto")
    assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize("height_and_width", [(4, 8), (3, 3), (5, 5)])
def test_maps_without_a_candidate_are_left_alone(height_and_width):
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    use_fast_convolutions(model, (128, *height_and_width), 2, Precision(), "auto")
    assert algorithms(model) == "library"


def choose_on_ranks() -> str:
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    choice.by_rule = lambda shape: ["winograd-2", "winograd-4"][dist.get_rank()]
    use_fast_convolutions(model, (128, 2, 2), 2, Precision(), "auto")
    return algorithms(model)


def test_all_ranks_do_as_the_leader_does():
    assert run_ranks(2, choose_on_ranks) == ["winograd-2", "winograd-2"]


def test_the_checkpoint_says_which_algorithms_ran(vgg11):
    settings = Settings(workload="digits-vgg11", batch_size=4)
    node = Node(World(), torch.device("cpu"), threads=1)
    assert ran_on("PartOne", node, settings, vgg11)["convolutions"] == "library"
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), "auto")
    assert ran_on("PartOne", node, settings, vgg11)["convolutions"] == FAST_VGG11


@pytest.mark.parametrize(("how", "found"), [("auto", FEW_VGG11), ("library", "library")])
def test_the_flag_reaches_the_model(how, found):
    settings, _ = parse_command_line("PartOne", ["--workload", "digits-vgg11",
                                                 "--convolutions", how])
    node = Node(World(), torch.device("cpu"), threads=1)
    model, _, _ = create_training(settings, images_of_digits(), node)
    assert algorithms(model) == found


def test_without_a_compiler_all_stays_with_the_library(monkeypatch):
    shape = Shape(512, 512, 4, 256, "float32")
    assert by_rule(shape) == "winograd-4"
    monkeypatch.setattr(kernels, "library", lambda: Compiled(None, "there is no C++ compiler"))
    assert by_rule(shape) == "library"


def test_a_resumed_run_says_that_without_a_compiler_nothing_is_fused(vgg11, monkeypatch):
    before = "fused winograd-4" + 6 * " library"
    monkeypatch.setattr(kernels, "library", lambda: Compiled(None, "there is no C++ compiler"))
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), before)
    assert algorithms(vgg11) == before.replace("fused", "library")


def test_a_model_without_tiles_has_no_products(vgg11):
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), "fused" + 7 * " library")
    assert products(vgg11, Precision()) == "library"
    use_fast_convolutions(vgg11, IMAGE, 256, Precision(), 7 * "library " + "toeplitz")
    assert products(vgg11, Precision()) != "library"
