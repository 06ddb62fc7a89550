"""Convolutions chosen by measuring: a file that all nodes of a cluster can use.

    python3 scripts/tune.py tuned.json --workload cifar10-vgg11
    python3 PartOne/main.py --convolutions tuned.json
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from common.arithmetic.choice import LIBRARY, Shape
from common.arithmetic.convolution import compute_by
from common.arithmetic.fused_layers import FUSED, fuse
from common.arithmetic.pooling import PooledBatchNorm2d
from common.core.failures import UsageError
from common.core.files import read_json
from common.core.precision import Precision
from common.core.provenance import instruction_sets, processor

# The library keeps a layer unless another takes less than this share of its time.
CLEARLY_FASTER = 0.95
# On a quiet machine the longest turn takes less than so many times the shortest.
QUIET = 1.5


class Tuned(NamedTuple):
    """Where it was measured, and the algorithm for each shape, by the shape's words."""

    processor: str
    instruction_sets: str
    torch: str
    threads: int
    choices: dict[str, str]

    def __str__(self) -> str:
        return (f"measured on {self.processor} ({self.instruction_sets}), threads: {self.threads}, "
                f"torch {self.torch}")

    @classmethod
    def here(cls, choices: dict[str, str]) -> "Tuned":
        return cls(processor(), instruction_sets(), str(torch.__version__),
                   torch.get_num_threads(), choices)


def is_tuned(how: str) -> bool:
    """Whether --convolutions names a file."""
    return how.endswith(".json")


def read_tuned(path: Path) -> Tuned:
    """What scripts/tune.py wrote. Raises UsageError for a file that is missing or another's."""
    try:
        tuned = Tuned(**read_json(path))
        valid = all(isinstance(word, str) for pair in tuned.choices.items() for word in pair)
    except OSError as error:
        raise UsageError(f"--convolutions {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise UsageError(f"--convolutions {path} is no file that scripts/tune.py wrote")
    return tuned


def choose_tuned(path: Path, shape: Shape) -> str:
    """What the file says of `shape`. Raises UsageError where it says nothing that can be."""
    name = read_tuned(path).choices.get(str(shape), "")
    if name not in (LIBRARY, *shape.candidates()):
        raise UsageError(f"--convolutions {path} has nothing for {shape}: measure it with "
                         "scripts/tune.py and the flags of this run")
    return name


def fastest(seconds: Mapping[str, list[float]]) -> str:
    """The library, or the candidate whose best turn is clearly shorter than the library's."""
    best = {name: min(times) for name, times in seconds.items()}
    winner = min(best, key=best.__getitem__)
    return winner if best[winner] < CLEARLY_FASTER * best[LIBRARY] else LIBRARY


def is_quiet(seconds: Mapping[str, list[float]]) -> bool:
    """Whether nothing else kept the machine busy: turns of the same algorithm took as long."""
    return all(max(times) < QUIET * min(times) for times in seconds.values())


def measure(shape: Shape, rounds: int) -> dict[str, list[float]]:
    """Seconds of forward and both gradients, by the library and by each candidate, in turns.

    A first round warms up and does not count. No random number of the run is drawn.
    """
    with torch.random.fork_rng(devices=[]):
        turns = {name: _turn(shape, name) for name in (LIBRARY, *shape.candidates())}
        found = [{name: turn() for name, turn in turns.items()} for _ in range(rounds + 1)]
    return {name: [each[name] for each in found[1:]] for name in turns}


def _turn(shape: Shape, name: str) -> Callable[[], float]:
    """A function that computes forward and both gradients, and returns its seconds."""
    precision, layers = Precision(shape.precision), layers_of(shape, name)
    maps = torch.randn(shape.samples, shape.inputs, shape.size, shape.size,
                       dtype=precision.dtype)
    maps = maps.contiguous(memory_format=torch.channels_last)
    return partial(_seconds, layers, maps.requires_grad_(FUSED not in shape.candidates()),
                   precision)


def layers_of(shape: Shape, name: str) -> nn.Sequential:
    """A convolution as `name` computes it; that of images with what can be fused with it."""
    dtype = Precision(shape.precision).dtype
    layer = nn.Conv2d(shape.inputs, shape.outputs, 3, padding=1, dtype=dtype)
    layers = nn.Sequential(layer).to(memory_format=torch.channels_last)
    if FUSED in shape.candidates():
        layers.append(PooledBatchNorm2d(shape.outputs).to(dtype)).append(nn.ReLU())
    if name == FUSED:
        fuse(layers)
    elif name != LIBRARY:
        compute_by(name, layer)
    return layers


def _seconds(layers: nn.Module, maps: Tensor, precision: Precision) -> float:
    begun = time.perf_counter()
    with precision.autocast(maps.device):
        outputs = layers(maps)
    wanted = [each for each in (maps, *layers.parameters()) if each.requires_grad]
    torch.autograd.grad(outputs, wanted, torch.ones_like(outputs))
    return time.perf_counter() - begun
