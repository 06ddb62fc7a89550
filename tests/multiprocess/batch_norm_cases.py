"""Layers, batches and a loss that the batch-norm tests have in common."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# layer, shape of a sample, memory format, settings
LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...], torch.memory_format, dict[str, Any]]] = {
    "2d": (nn.BatchNorm2d, (3, 4, 5), torch.contiguous_format, {}),
    "channels_last": (nn.BatchNorm2d, (3, 4, 5), torch.channels_last, {"eps": 0.1}),
    "cumulative": (nn.BatchNorm2d, (3, 4, 5), torch.channels_last, {"momentum": None}),
    "not affine": (nn.BatchNorm2d, (3, 4, 5), torch.channels_last, {"affine": False}),
    "untracked": (nn.BatchNorm2d, (3, 4, 5), torch.channels_last, {"track_running_stats": False}),
    "one dimension": (nn.BatchNorm1d, (3,), torch.contiguous_format, {"momentum": 0.3}),
    "sequence": (nn.BatchNorm1d, (3, 5), torch.contiguous_format, {}),
    "volume": (nn.BatchNorm3d, (3, 2, 3, 4), torch.channels_last_3d, {}),
}


def shard_of(tensor: Tensor, shards: list[int]) -> Tensor:
    return tensor.split(shards)[dist.get_rank()]


def cubes(output: Tensor, factor: Tensor) -> Tensor:
    """A loss, summed over samples, whose gradient varies with output and place."""
    return (output.pow(3) * factor).flatten(1).mean(1).sum()


def make_layer(name: str) -> nn.Module:
    kind, sample, _, settings = LAYERS[name]
    layer = kind(sample[0], **settings).double()
    for seed, parameter in enumerate(layer.parameters()):
        nn.init.normal_(parameter, 1.0, 0.5, generator=torch.Generator().manual_seed(seed))
    return layer


def make_batches(name: str, size: int, seed: int = 0) -> list[Tensor]:
    """Two inputs and the loss's factor, float64, off centre."""
    _, sample, memory_format, _ = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    batches = torch.randn(3, size, *sample, generator=generator, dtype=torch.float64)
    return [(3 * batch + 2).to(memory_format=memory_format) for batch in batches]


def after_training_batch(layer: nn.Module, input: Tensor, factor: Tensor,
                         scale: float) -> dict[str, Tensor]:
    input = input.detach().requires_grad_()
    output = layer(input)
    (cubes(output, factor) * scale).backward()
    gradients = {f"gradient {name}": p.grad for name, p in layer.named_parameters()}
    buffers = dict(layer.named_buffers())
    return {"output": output.detach(), "input": input.grad, **gradients, **buffers}
