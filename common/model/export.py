"""A trained model as a file that torch.export loads, in a process without this project.

    python3 scripts/evaluate.py outputs/PartOne/checkpoints/Epoch_1.pt --export model.pt2
    python3 -c "import torch; print(torch.export.load('model.pt2').module())"

The model takes samples as the data set holds them, with channels first (images: uint8, 0 to 255),
normalises them itself, and gives probabilities where there are classes.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.arithmetic.convolution import FastConv2d
from common.arithmetic.fused_layers import FusedLayers, unfuse
from common.arithmetic.pooling import PooledBatchNorm2d
from common.arithmetic.torch_private import change_class
from common.core.failures import UsageError, first_line, writing
from common.model.batch_norm import unsynchronize_batch_norm
from common.model.dropout import SampleDropout

CLASSES = "classes.json"


class Prepared(nn.Module):
    """A model behind the normalisation of its inputs, and before a softmax where it has classes.

    `mean` and `std` are per channel, in units of `white`; without them samples go in as they are.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float], white: float,
                 has_classes: bool) -> None:
        super().__init__()
        self.model, self.is_normalised, self.has_classes = model, bool(mean), has_classes
        dtype = next(model.parameters()).dtype
        wide = [torch.tensor(each, dtype=torch.float64).view(-1, 1, 1) for each in (mean, std)]
        self.register_buffer("scale", (1 / (white * wide[1])).to(dtype))
        self.register_buffer("shift", (-wide[0] / wide[1]).to(dtype))

    def forward(self, samples: Tensor) -> Tensor:
        if self.is_normalised:
            samples = samples.to(self.scale.dtype) * self.scale + self.shift
        outputs = self.model(samples)
        return outputs.softmax(dim=1) if self.has_classes else outputs


def export(model: nn.Module, form: Mapping[str, Any], mean: Sequence[float], std: Sequence[float],
           has_classes: bool, path: Path) -> None:
    """Writes `model` to `path`, in torch's own layers, for any number of samples at once.

    `form` is what dataset.form_of told; the names of the classes stand in the file's CLASSES.
    Raises UsageError where torch.export cannot follow the model or the file cannot be written.
    """
    *rest, last = form["shape"]
    shape = [last, *rest] if mean else form["shape"]
    dtype = getattr(torch, form["dtype"])
    whole = Prepared(in_plain_layers(model).cpu(), mean, std, 255 if dtype == torch.uint8 else 1,
                     has_classes)
    example = torch.zeros(2, *shape, dtype=dtype)
    try:
        program = torch.export.export(whole.eval().requires_grad_(False), (example,),
                                      dynamic_shapes=({0: torch.export.Dim("samples")},))
    except Exception as error:  # whatever in a user's model stops its tracing
        raise UsageError(f"torch.export cannot follow {type(model).__name__}: "
                         f"{first_line(error)}") from error
    with writing(path):
        torch.export.save(program, path, extra_files={CLASSES: json.dumps(form["classes"])})


def in_plain_layers(model: nn.Module) -> nn.Module:
    """A copy of `model` that computes the same by the layers of torch.nn, to rounding."""
    model = unsynchronize_batch_norm(copy.deepcopy(model)).to(
        memory_format=torch.contiguous_format)
    for parent in list(model.modules()):
        if isinstance(parent, FusedLayers):
            unfuse(parent)
        for name, layer in parent.named_children():
            if isinstance(layer, FastConv2d):
                change_class(layer, nn.Conv2d)
            elif isinstance(layer, PooledBatchNorm2d):
                change_class(layer, nn.BatchNorm2d)
                setattr(parent, name, nn.Sequential(layer, nn.MaxPool2d(layer.size)))
            elif isinstance(layer, SampleDropout):
                setattr(parent, name, nn.Dropout(layer.probability))
    return model
