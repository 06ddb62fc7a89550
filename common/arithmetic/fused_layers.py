"""A row of layers, some of which train as one, so that fewer maps are written and read.

The images' convolution, batch norm, pooling and ReLU are one (first_block.py), and each later batch
norm and its ReLU (norm_relu.py). The layers stay what they are, with their parameters and names.

    python3 -m pytest tests/unit/test_fused_layers.py
"""

import torch
from torch import Tensor, nn

from common.arithmetic.first_block import can_pool, first_block, is_first_block
from common.arithmetic.kernels import why_not
from common.arithmetic.norm_relu import can_normalize, norm_relu
from common.arithmetic.torch_private import BeforeUse, change_class, hooks_of

END = nn.Identity()  # stands where no layer is left
FUSED = "fused"  # a convolution's algorithm: together with what comes after it


class FusedConv2d(nn.Conv2d):
    """The first convolution of FusedLayers. Alone it is nn.Conv2d."""

    algorithm = FUSED


class FusedLayers(nn.Sequential):
    """An nn.Sequential that fuses, in training, its first block and each batch norm with its ReLU.

    Layers run separately in evaluation, where nothing is compiled, where the input is not float32
    images or requires a gradient, and where they have a hook other than BeforeUse.
    """

    def forward(self, input: Tensor) -> Tensor:
        layers, maps = list(self), input
        while layers:
            maps, count = _next_maps(layers, maps)
            del layers[:count]
        return maps


def _next_maps(layers: list[nn.Module], maps: Tensor) -> tuple[Tensor, int]:
    """Applies the first of `layers` to `maps`: returns the result and the number applied."""
    first, second, third = [*layers, END, END][:3]
    kind = maps.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else maps.dtype
    if why_not() or _is_watched(first) or _is_watched(second):
        return first(maps), 1
    if (isinstance(first, FusedConv2d) and can_pool(second, first, maps, dtype)
            and type(third) is nn.ReLU and not _is_watched(third)):
        _announce(first, second, third)
        return first_block(first, second, maps, dtype), 3
    if type(second) is nn.ReLU and can_normalize(first, maps):
        _announce(first, second)
        return norm_relu(first, maps), 2
    return first(maps), 1


def _is_watched(layer: nn.Module) -> bool:
    return not all(isinstance(hook, BeforeUse) for hook in hooks_of(layer))


def _announce(*layers: nn.Module) -> None:
    """Tells those who want to know that `layers` are about to be used."""
    for layer in layers:
        for hook in hooks_of(layer):
            hook(layer, ())


def fusable(model: nn.Module) -> dict[nn.Conv2d, nn.Sequential]:
    """By its first convolution, the part of `model` that could be FusedLayers, if there is one.

    It is the model's first, which sees the images.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    parts = {}
    for part in model.modules():
        if type(part) is nn.Sequential and len(part) > 2:
            convolution, norm, relu, *_ = part
            if convolution is first and is_first_block(convolution, norm, relu):
                parts[convolution] = part
    return parts


def fuse(part: nn.Sequential) -> None:
    """Makes `part` FusedLayers, in place: only its class changes, and its first convolution's."""
    change_class(part, FusedLayers)
    change_class(part[0], FusedConv2d)


def unfuse(part: FusedLayers) -> None:
    """Takes `fuse` back."""
    change_class(part, nn.Sequential)
    if isinstance(part[0], FusedConv2d):  # a slice of FusedLayers begins elsewhere
        change_class(part[0], nn.Conv2d)
