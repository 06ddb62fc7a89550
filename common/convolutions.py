"""Which 3x3 convolutions go fast here: measured once for each shape and machine, and remembered.

    python3 -c "from common.convolutions import remembered; print(*remembered().items(), sep='\\n')"
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from common.collectives import broadcast_bytes
from common.fast_convolution import compute_by, fits
from common.node_facts import processor
from common.precision import Precision

LIBRARY, AUTO, FAST = "library", "auto", "fast"
# The most promising first. In bf16 torch's own convolution is 0.2 % of its outputs off, winograd-2
# 0.6 %, and winograd-4 1.7 %: all train as well as float32, over three seeds (docs/one_node.md).
CANDIDATES = ("toeplitz", "winograd-4", "winograd-2")
# With fewer channels than that the transforms cost more than the products save.
FEWEST_CHANNELS = 128
MEASURED_SAMPLES = 256
ROUNDS = 3
# The library keeps a layer unless another takes less than this share of its time.
CLEARLY_FASTER = 0.95
# On a quiet machine the longest turn takes less than so many times the shortest.
QUIET = 1.5


class Shape(NamedTuple):
    """A convolution of `samples` maps of `size` x `size`, from `inputs` to `outputs` channels."""

    inputs: int
    outputs: int
    size: int
    samples: int
    precision: str

    def candidates(self) -> list[str]:
        return [name for name in CANDIDATES if fits(name, self.size)]


Choose = Callable[[Shape], str]


def use_fast_convolutions(model: nn.Module, image_shape: tuple[int, ...], samples: int,
                          precision: Precision, how: str) -> None:
    """Gives the layers of `model` the algorithms that suit them, in place; on a CPU.

    `image_shape` is (C, H, W), `samples` this rank's share of a batch. `how`: "auto" measures what
    is not remembered, "fast" takes the first candidate unmeasured, "library" changes nothing; what
    `algorithms` said of the run that is to be resumed does that again. Every rank must call, with
    the same arguments: all do as the leader does, so that they round alike.
    """
    if how == LIBRARY or next(model.parameters()).device.type != "cpu":
        return
    shapes = _shapes(model, image_shape, min(samples, MEASURED_SAMPLES), precision)
    choose: Choose = _first if how == FAST else Memory(_cache_file()).choose
    names = _as_before(model, shapes, how) or _leaders_choice(list(shapes.values()), choose)
    for layer, name in zip(shapes, names, strict=True):
        if name != LIBRARY:
            compute_by(name, layer)


def algorithms(model: nn.Module) -> str:
    """What each convolution of `model` is computed by, in the order of its layers."""
    names = [getattr(layer, "algorithm", LIBRARY) for layer in model.modules()
             if isinstance(layer, nn.Conv2d)]
    return " ".join(names) if set(names) - {LIBRARY} else LIBRARY


def _as_before(model: nn.Module, shapes: Mapping[nn.Conv2d, Shape], how: str) -> list[str]:
    """By layer of `shapes`, what `how` says; nothing if it is no list for this model."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    told = dict(zip(layers, how.split(), strict=False))
    names = [told.get(layer, "") for layer in shapes]
    possible = all(name in (LIBRARY, *shape.candidates())
                   for name, shape in zip(names, shapes.values(), strict=True))
    return names if possible and len(how.split()) == len(layers) else []


def _leaders_choice(shapes: list[Shape], choose: Choose) -> list[str]:
    """One name for each shape. Every rank must call; only the leader's `choose` counts."""
    told = b""
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        told = json.dumps([choose(shape) for shape in shapes]).encode()
    return json.loads(broadcast_bytes(told, torch.device("cpu")) or b"[]")


def _shapes(model: nn.Module, image_shape: tuple[int, ...], samples: int,
            precision: Precision) -> dict[nn.Conv2d, Shape]:
    """The layers for which there is a candidate. Runs `model` once, to see the maps' sizes."""
    found: dict[nn.Conv2d, Shape] = {}
    layers = [layer for layer in model.modules() if _is_plain_3x3(layer)]
    if not layers:
        return found

    def note(layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        height, width = inputs[0].shape[-2:]
        shape = Shape(layer.in_channels, layer.out_channels, height, samples, precision.name)
        if height == width and shape.candidates():
            found[layer] = shape

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *image_shape, dtype=precision.dtype))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return found


def _is_plain_3x3(layer: nn.Module) -> bool:
    return type(layer) is nn.Conv2d and min(layer.in_channels, layer.out_channels) >= \
        FEWEST_CHANNELS and (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == (
            (3, 3), (1, 1), (1, 1), (1, 1)) and (layer.groups, layer.padding_mode) == (1, "zeros")


def _first(shape: Shape) -> str:
    return shape.candidates()[0]


class Memory:
    """Choices of earlier runs in a file of JSON. One that cannot be read or written is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} "

    def choose(self, shape: Shape) -> str:
        """The remembered choice for `shape`, or a new one.

        A new one is remembered if the machine was quiet: else the next run measures again.
        """
        key = (f"{self._machine}threads, {' '.join(map(str, shape))}, "
               f"one of {' '.join(shape.candidates())}")
        known = remembered(self._path)
        if known.get(key) not in (LIBRARY, *shape.candidates()):
            seconds = measure(shape, ROUNDS)
            known[key] = fastest(seconds)
            if is_quiet(seconds):
                self._write(known)
        return known[key]

    def _write(self, known: dict[str, str]) -> None:
        partial_file = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial_file.write_text(json.dumps(known, indent=1) + "\n")
            os.replace(partial_file, self._path)
        except OSError:
            with suppress(OSError):
                partial_file.unlink()


def remembered(path: Path | None = None) -> dict[str, str]:
    """Machine and shape to algorithm, as measured by earlier runs."""
    try:
        known = json.loads((path or _cache_file()).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _cache_file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "visible-data-parallel" / "convolutions.json"


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
    precision = Precision(shape.precision)
    layer = nn.Conv2d(shape.inputs, shape.outputs, 3, padding=1, dtype=precision.dtype)
    layer = layer.to(memory_format=torch.channels_last)
    if name != LIBRARY:
        compute_by(name, layer)
    maps = torch.randn(shape.samples, shape.inputs, shape.size, shape.size,
                       dtype=precision.dtype)
    maps = maps.contiguous(memory_format=torch.channels_last).requires_grad_()
    return partial(_seconds, layer, maps, precision)


def _seconds(layer: nn.Module, maps: Tensor, precision: Precision) -> float:
    begun = time.perf_counter()
    with precision.autocast(maps.device):
        outputs = layer(maps)
    torch.autograd.grad(outputs, [maps, *layer.parameters()], torch.ones_like(outputs))
    return time.perf_counter() - begun
