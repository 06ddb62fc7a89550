"""The classifiers that --model names: VGG-11, the small CNN, and any of torchvision's.

    python3 PartOne/main.py --workload image-folder --data-dir ~/pets --model resnet18 \\
        --image-size 64
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Any

import torch
from torch import nn

from common.arithmetic.torch_private import AnyBatchNorm
from common.core.failures import UsageError, first_line
from common.model.dropout import SampleDepth, SampleDropout
from common.model.small_models import MnistCnn
from common.model.vgg11 import VGG11

CHANNELS = 3
OURS: dict[str, Callable[[int, int], nn.Module]] = {
    "vgg11": lambda classes, size: VGG11(classes, last_scale=1.0),
    "small-cnn": lambda classes, size: MnistCnn(classes, CHANNELS, size),
}


def create_classifier(classes: int, name: str = "vgg11", size: int = 32) -> nn.Module:
    """The model called `name`: RGB images (n, 3, size, size) to class scores (n, classes).

    Weights are random. In torchvision's models dropout and stochastic depth belong to the samples,
    as in ours. Raises UsageError for a name that there is not, and a size that it cannot take.
    """
    if name in OURS:
        return OURS[name](classes, size)
    models = _torchvision_models()
    known = models.list_models(module=models)
    if name not in known:
        close = get_close_matches(name, [*OURS, *known], 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
        raise UsageError(f"--model {name} is neither {' nor '.join(OURS)} nor a classifier of "
                         f"torchvision.models: {hint}")
    try:
        model = models.get_model(name, weights=None, num_classes=classes, **_arguments(name, size))
    except Exception as error:
        raise _cannot(name, size, error) from error
    return _with_sample_dropout(model)


def has_batch_norm(name: str, size: int) -> bool:
    """Returns True if the model has batch norm. Raises UsageError if it cannot take the size."""
    return any(isinstance(layer, AnyBatchNorm) for layer in _tried(name, size).modules())


@cache
def _tried(name: str, size: int) -> nn.Module:
    """A model for two classes that has classified two images, without computing anything."""
    model = create_classifier(2, name, size).to("meta")
    try:
        model(torch.zeros(2, CHANNELS, size, size, device="meta"))
    except Exception as error:
        raise _cannot(name, size, error) from error
    return model


def _cannot(name: str, size: int, error: Exception) -> UsageError:
    return UsageError(f"--model {name} cannot take images of {size}x{size} pixels "
                      f"({first_line(error)}): choose another --image-size")


def _torchvision_models() -> Any:
    try:
        from torchvision import models
    except Exception as error:
        raise UsageError(f"torchvision cannot be imported ({first_line(error)}), so --model must "
                         f"be {' or '.join(OURS)}") from error
    return models


def _arguments(name: str, size: int) -> dict[str, Any]:
    """Arguments that some families require: the input size, or to return the scores only."""
    if name.startswith("vit_"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def _with_sample_dropout(model: nn.Module) -> nn.Module:
    """Puts the layers whose masks belong to samples in place of torchvision's; returns `model`."""
    from torchvision.ops import StochasticDepth

    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Dropout:
                setattr(parent, name, SampleDropout(layer.p))
            elif isinstance(layer, StochasticDepth) and layer.mode == "row":
                setattr(parent, name, SampleDepth(layer.p))
    return model
