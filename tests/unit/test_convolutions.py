"""The choice of algorithms: which layers, measured once, remembered, the same on every rank.

Mutations that turn this red: FEWEST_CHANNELS = 1; drop any condition of _is_plain_3x3; leave out
fork_rng, or the hooks' removal, or model.train(was_training); forget to write what was measured,
or the machine in the key; write what a busy machine said; let every rank choose for itself; leave
out algorithms() in ran_on; return the winner even when it is hardly faster; leave out
`how == LIBRARY`; pass "library" on in create_training.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from common import convolutions
from common.command_line import parse_command_line
from common.convolutions import (
    Memory,
    Shape,
    algorithms,
    fastest,
    measure,
    remembered,
    use_fast_convolutions,
)
from common.datasets import ImageDataset
from common.precision import Precision
from common.process_group import Node
from common.run import ran_on
from common.settings import Settings
from common.setup import create_training
from common.vgg11 import VGG11
from common.world import World
from tests.ranks import run_ranks

IMAGE = (3, 32, 32)
FAST_VGG11 = "library library winograd-4 winograd-4 winograd-4 winograd-4 toeplitz toeplitz"
SHAPE = Shape(128, 128, 2, 4, "float32")


@pytest.fixture
def vgg11() -> VGG11:
    return VGG11().to(memory_format=torch.channels_last)


def test_the_layers_of_vgg11_and_nothing_else_changes(vgg11):
    before = {name: id(value) for name, value in vgg11.named_parameters()}
    state = torch.random.get_rng_state()
    use_fast_convolutions(vgg11, IMAGE, 4, Precision(), "fast")
    assert algorithms(vgg11) == FAST_VGG11
    assert {name: id(value) for name, value in vgg11.named_parameters()} == before
    assert vgg11.training and torch.equal(state, torch.random.get_rng_state())
    assert not any(layer._forward_pre_hooks for layer in vgg11.modules())


def test_the_library_can_be_asked_for(vgg11):
    use_fast_convolutions(vgg11, IMAGE, 4, Precision(), "library")
    assert algorithms(vgg11) == "library"


def test_a_model_gives_the_same_scores_and_gradients(vgg11):
    vgg11 = vgg11.double()
    images = torch.randn(6, *IMAGE, dtype=torch.float64)
    found = []
    for how in ("library", "fast"):
        use_fast_convolutions(vgg11, IMAGE, 6, Precision("float64"), how)
        scores = vgg11(images)
        found.append([scores, *torch.autograd.grad(scores.square().sum(), vgg11.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("change", [
    {"in_channels": 127}, {"out_channels": 64}, {"kernel_size": 5, "padding": 2}, {"stride": 2},
    {"dilation": 2}, {"groups": 2}, {"padding_mode": "reflect"}, {"padding": 0}])
def test_other_convolutions_are_left_alone(change):
    options = {"in_channels": 128, "out_channels": 128, "kernel_size": 3, "padding": 1} | change
    model = nn.Sequential(nn.Conv2d(**options))
    use_fast_convolutions(model, (options["in_channels"], 4, 4), 2, Precision(), "fast")
    assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize("height_and_width", [(4, 8), (3, 3), (5, 5)])
def test_maps_without_a_candidate_are_left_alone(height_and_width):
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    use_fast_convolutions(model, (128, *height_and_width), 2, Precision(), "fast")
    assert algorithms(model) == "library"


@pytest.mark.parametrize(("best", "winner"), [
    ({"library": 1.0, "toeplitz": 0.5, "winograd-2": 0.7}, "toeplitz"),
    ({"library": 1.0, "toeplitz": 0.97, "winograd-2": 1.2}, "library"),
    ({"library": 1.0, "toeplitz": 1.5, "winograd-2": 0.9}, "winograd-2")])
def test_the_library_keeps_what_is_not_clearly_faster(best, winner):
    assert fastest({name: [9.0, seconds, 9.0] for name, seconds in best.items()}) == winner


def test_measuring_takes_turns_and_draws_no_random_number_of_the_run():
    state = torch.random.get_rng_state()
    seconds = measure(SHAPE, 2)
    assert list(seconds) == ["library", "toeplitz", "winograd-2"]
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.fixture
def measured(monkeypatch):
    """Plants what measuring finds: a winner, and how long its longest turn took."""
    asked = []

    def plant(winner: str, longest: float = 1.1) -> list[Shape]:
        found = {"library": [3.0, 3.0], winner: [1.0, longest]}
        monkeypatch.setattr(convolutions, "measure",
                            lambda shape, rounds: asked.append(shape) or found)
        return asked
    return plant


def test_a_choice_is_measured_once_for_each_shape_and_machine(tmp_path, monkeypatch, measured):
    asked = measured("toeplitz")
    path, other = tmp_path / "deep" / "choices.json", SHAPE._replace(samples=5)
    assert [Memory(path).choose(SHAPE) for _ in range(3)] == ["toeplitz"] * 3
    Memory(path).choose(other)
    monkeypatch.setattr(convolutions, "processor", lambda: "another")
    Memory(path).choose(SHAPE)
    assert asked == [SHAPE, other, SHAPE]
    assert len(remembered(path)) == 3
    assert [each.name for each in path.parent.iterdir()] == ["choices.json"]


def test_a_new_candidate_is_measured(tmp_path, monkeypatch, measured):
    asked = measured("winograd-2")
    path = tmp_path / "choices.json"
    monkeypatch.setattr(convolutions, "CANDIDATES", ("winograd-2",))
    Memory(path).choose(SHAPE)
    monkeypatch.undo()
    measured("toeplitz")
    assert Memory(path).choose(SHAPE) == "toeplitz" and len(asked) == 2


def test_what_a_busy_machine_says_is_not_remembered(tmp_path, measured):
    asked = measured("toeplitz", longest=1.6)
    path = tmp_path / "choices.json"
    assert [Memory(path).choose(SHAPE) for _ in range(2)] == ["toeplitz"] * 2
    assert len(asked) == 2 and remembered(path) == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"x": 3}'])
def test_a_damaged_memory_is_measured_anew(text, tmp_path, measured):
    measured("toeplitz")
    path = tmp_path / "choices.json"
    path.write_text(text)
    assert Memory(path).choose(SHAPE) == "toeplitz"
    assert "toeplitz" in json.loads(path.read_text()).values()


def test_an_impossible_choice_is_not_believed(tmp_path, measured):
    path = tmp_path / "choices.json"
    measured("winograd-4")  # which maps of 2x2 cannot be
    Memory(path).choose(SHAPE)
    measured("toeplitz")
    assert Memory(path).choose(SHAPE) == "toeplitz"


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, measured):
    measured("toeplitz")
    (tmp_path / "file").write_text("")
    assert Memory(tmp_path / "file" / "choices.json").choose(SHAPE) == "toeplitz"


def choose_on_ranks() -> str:
    convolutions._first = lambda shape: ("toeplitz", "winograd-2")[dist.get_rank()]
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    use_fast_convolutions(model, (128, 2, 2), 2, Precision(), "fast")
    return algorithms(model)


def test_all_ranks_do_as_the_leader_does():
    assert run_ranks(2, choose_on_ranks) == ["toeplitz", "toeplitz"]


def test_the_checkpoint_says_which_algorithms_ran(vgg11):
    settings = Settings("digits-vgg11", Path(), Path(), 1, 4, 0.1, 0.9, 0.0)
    node = Node(World(), torch.device("cpu"), threads=1)
    assert ran_on("PartOne", node, settings, vgg11)["convolutions"] == "library"
    use_fast_convolutions(vgg11, IMAGE, 4, Precision(), "fast")
    assert ran_on("PartOne", node, settings, vgg11)["convolutions"] == FAST_VGG11


@pytest.mark.parametrize(("how", "found"), [("fast", FAST_VGG11), ("library", "library")])
def test_the_flag_reaches_the_model(how, found):
    settings, _ = parse_command_line("PartOne", ["--workload", "digits-vgg11",
                                                 "--convolutions", how])
    images = np.zeros((20, 32, 32, 3), dtype=np.uint8)
    dataset = ImageDataset(images, np.arange(20) % 10, tuple("0123456789"), "")
    model, _, _ = create_training(settings, dataset, Node(World(), torch.device("cpu"), threads=1))
    assert algorithms(model) == found
