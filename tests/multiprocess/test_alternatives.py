"""DataParallel and the model split learn what DDP learns, and say what they can show here.

Mutations that turn this red: leave the model's output on the second device, or its stages on the
first; let data-parallel start on two ranks; leave the banner's words out; leave DataParallel's own
__init__ out.
"""

import json
import re

import pytest
import torch
from torch import nn

from common.model.model_split import split_in_two
from common.model.replica import unwrapped
from common.model.small_models import MnistCnn
from common.model.vgg11 import VGG11
from PartThree.data_parallel import DataParallel
from tests.facts import says
from tests.ranks import cluster, error_lines, run_programs
from tests.workload import SMALL, plant


def results(folder, world_size: int, *flags: str) -> tuple[dict, str]:
    folder.mkdir()
    programs = cluster("PartThree", world_size, [
        *SMALL, "--precision", "float64", "--epochs", "1", "--output-dir", str(folder / "out"),
        *flags], folder, before=dict.fromkeys(range(world_size), plant))
    outcomes = run_programs(programs)
    assert {outcome.code for outcome in outcomes} == {0}, outcomes
    return (json.loads((folder / "out" / "PartThree" / "summary.json").read_text()),
            outcomes[0].output)


@pytest.mark.parametrize("world_size, parallel, facts", [
    (1, "data-parallel", r"DataParallel\b.*\b0\b"),
    (1, "model-split", r"split\b.*\bcpu\b.*\bcpu\b"),
    (2, "model-split", r"split\b.*\bcpu\b.*\bcpu\b"),
])
def test_they_learn_the_same_and_say_what_that_shows(world_size, parallel, facts, tmp_path):
    by_ddp, _ = results(tmp_path / "ddp", world_size)
    other, said = results(tmp_path / "other", world_size, "--parallel", parallel)
    assert re.search(facts, said)
    assert other["test_loss"] == pytest.approx(by_ddp["test_loss"], abs=1e-12)
    assert other["parameters"] == by_ddp["parameters"]


def test_data_parallel_is_one_process(tmp_path):
    programs = cluster("PartThree", 2, [*SMALL, "--parallel", "data-parallel"], tmp_path,
                       before=dict.fromkeys(range(2), plant))
    for outcome in run_programs(programs):
        assert outcome.code == 2
        assert says(error_lines(outcome.output)[0], "--parallel", "data-parallel", 2)


@pytest.mark.parametrize("build, shape", [(VGG11, (2, 3, 32, 32)), (MnistCnn, (2, 1, 28, 28))])
def test_the_cut_halves_the_parameters_as_well_as_layers_allow(build, shape):
    """The second stage is on the "meta" device, which computes shapes and holds no numbers."""
    model = build()
    names = list(model.state_dict())
    crossed = []
    model.register_forward_hook(lambda _, inputs, output: crossed.append(output.device.type))
    later = split_in_two(model, torch.device("cpu"), torch.device("meta"))
    layers = [layer for layer in model.modules() if not list(layer.children())]
    devices = [parameter.device.type for layer in layers for parameter in layer.parameters()]
    assert 0 < later < len(layers) and devices == sorted(devices)
    before = sum(p.numel() for p in model.parameters() if p.device.type == "cpu")
    assert 0 < before <= sum(p.numel() for p in model.parameters()) / 2
    assert list(model.state_dict()) == names
    with pytest.raises(NotImplementedError, match="meta"):  # numbers that nobody holds
        model.eval()(torch.zeros(shape))
    assert crossed == ["meta"]


def test_a_model_on_the_cpu_is_only_called_even_where_there_are_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    model = nn.Linear(2, 2)
    wrapped = DataParallel(model)
    assert unwrapped(wrapped) is model
    assert torch.equal(wrapped(torch.ones(3, 2)), model(torch.ones(3, 2)))
