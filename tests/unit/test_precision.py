"""The loss, and what is predicted, are computed in float32 at least, whatever the model returned.

Mutations that turn this red: leave `widen` out of `forward` in common/training.py, of `predict` in
common/evaluation.py, or of `probabilities` in common/saved_model.py; let it return its argument.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.metrics import ACCURACY
from common.core.precision import HALVES, Precision
from common.core.progress import Progress
from common.core.world import World
from common.evaluation import predict
from common.run.state import State
from common.saved_model import SavedModel
from common.settings.settings import Settings
from common.step.accumulation import Part
from common.step.readings import Readings
from common.training import forward

NAMES = {"float32": torch.float32, "bf16": torch.float32, "fp16": torch.float32,
         "float64": torch.float64}


class Seen(nn.Module):
    """Cross entropy that keeps the outputs it was given."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.outputs = outputs.detach()
        return cross_entropy(outputs, targets)


def model_and_batch(precision: Precision) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    model = nn.Linear(7, 5).to(precision.dtype)
    return model, torch.randn(11, 7, dtype=precision.dtype), torch.arange(11) % 5


def returned(model: nn.Module, inputs: Tensor, precision: Precision) -> Tensor:
    with torch.no_grad(), precision.autocast(inputs.device):
        return model(inputs)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_a_training_step_is_not_rounded_to_half_precision(name):
    precision, seen = Precision(name), Seen()
    model, inputs, targets = model_and_batch(precision)
    loss = forward(model, seen, Part(inputs, targets, 1.0, None, 0),
                   SimpleNamespace(precision=precision, state=State(),
                                   readings=Readings(ACCURACY)))
    outputs = returned(model, inputs, precision)
    assert outputs.dtype == HALVES.get(name, NAMES[name])
    assert loss.dtype == seen.outputs.dtype == NAMES[name]
    assert torch.equal(seen.outputs, outputs.to(NAMES[name]))
    assert torch.equal(loss, cross_entropy(outputs.to(NAMES[name]), targets))


@pytest.mark.parametrize("name", NAMES)
def test_nor_is_that_of_an_evaluation(name):
    precision, seen = Precision(name), Seen()
    model, inputs, targets = model_and_batch(precision)
    totals, _ = predict(model, seen, [(inputs, targets)], precision, Progress())
    assert seen.outputs.dtype == NAMES[name]
    exact = cross_entropy(returned(model, inputs, precision).to(NAMES[name]), targets)
    assert totals.means()[0] == exact.item()


def test_nor_are_the_probabilities_of_a_picture(tmp_path, monkeypatch):
    form = {"shape": [8, 8, 3], "dtype": "uint8", "classes": ["a", "b"]}
    monkeypatch.setattr("common.saved_model.read_pictures",
                        lambda *_: torch.arange(192, dtype=torch.uint8).view(1, 8, 8, 3).numpy())
    saved = SavedModel(tmp_path, Settings(precision="bf16"),
                       Node(World(), torch.device("cpu"), threads=1),
                       nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), form)
    found = saved.probabilities([tmp_path])
    assert found.dtype == torch.float32
    assert float((found.sum(1) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("outputs", [(torch.ones(2), torch.ones(2)), {"x": 1}, None])
def test_a_model_that_returns_no_tensor_is_told_so(outputs):
    with pytest.raises(UsageError, match=type(outputs).__name__):
        Precision().widen(outputs)
