"""One model over two devices: the first layers on one, the rest on the other.

For a model too large for one device. The devices take turns, so it is not faster than one of them:
while the second computes, the first waits. On a machine without two GPUs both stages share the one
device, which shows the mechanism and nothing else.

    python3 PartThree/main.py --workload digits-vgg11 --parallel model-split
"""

from typing import Any

import torch
from torch import Tensor, nn


def second_device(first: torch.device, ranks_here: int) -> torch.device:
    """Where the second stage goes: the next GPU that no other rank has, else `first` itself."""
    if first.type == "cuda":
        index = (first.index or 0) + ranks_here
        if index < torch.cuda.device_count():
            return torch.device("cuda", index)
    return first


def split_in_two(model: nn.Module, first: torch.device, second: torch.device) -> int:
    """Moves the later layers of `model` to `second`, in place; returns how many there are.

    The cut is where at most half of the parameters lie before it. Layers must be used in the order
    in which the model lists them. Activations are moved where the second stage begins, and the
    output comes back to `first`. Parameters stay the same objects, and so do checkpoints.
    """
    layers = [layer for layer in model.modules() if not list(layer.children())]
    later = layers[_cut(layers):]

    def move(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(each.to(second) if isinstance(each, Tensor) else each for each in inputs)

    for layer in later:
        layer.to(second)
        layer.register_forward_pre_hook(move)
    model.register_forward_hook(lambda _, inputs, output: output.to(first))
    return len(later)


def _cut(layers: list[nn.Module]) -> int:
    """The number of layers of the first stage: at least one, and never all."""
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    half, before = sum(sizes) / 2, 0
    for number, size in enumerate(sizes):
        before += size
        if before > half:
            return min(max(number, 1), len(layers) - 1)
    return len(layers) - 1
