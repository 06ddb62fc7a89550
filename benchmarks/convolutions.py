#!/usr/bin/env python3
"""The convolutions of VGG-11 by every algorithm that fits: milliseconds, and how much each rounds.

    python3 benchmarks/convolutions.py                          # needs a quiet machine
    python3 benchmarks/convolutions.py --precision bf16 --samples 64 --rounds 1

Forward and both gradients, library and candidates in turns; the error is that of the outputs
against float64, over the outputs' norm. Prints Markdown: medians, smallest to largest.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from common.arithmetic.choice import LIBRARY, Shape
from common.arithmetic.convolution import compute_by
from common.arithmetic.fused_layers import FUSED, fuse
from common.arithmetic.pooling import PooledBatchNorm2d
from common.cluster.devices import keep_freed_memory
from common.cluster.program import run_program
from common.core.markdown import markdown_table
from common.core.precision import Precision
from common.core.provenance import conditions
from common.options.flag_parser import SentenceParser

# Channels in and out, and map size, of those layers that have candidates; the first with the batch
# norm, pooling and ReLU after it.
LAYERS = ((3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4),
          (512, 512, 2))


def measure(shape: Shape, rounds: int) -> dict[str, list[float]]:
    """Seconds of forward and both gradients, by the library and by each candidate, in turns.

    A first round warms up and does not count.
    """
    turns = {name: _turn(shape, name) for name in (LIBRARY, *shape.candidates())}
    seconds = [{name: turn() for name, turn in turns.items()} for _ in range(rounds + 1)]
    return {name: [each[name] for each in seconds[1:]] for name in turns}


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


def rounding(shape: Shape, name: str) -> float:
    """The relative error of the outputs of 32 random maps, against the same layers in float64."""
    precision, layers = Precision(shape.precision), layers_of(shape, name)
    maps = torch.randn(32, shape.inputs, shape.size, shape.size, dtype=precision.dtype)
    if precision.name == "bf16":  # what a layer before this one would hand over
        maps = maps.bfloat16().float()
    with torch.no_grad(), precision.autocast(maps.device):
        outputs = layers(maps).double()
    with torch.no_grad():
        exact = layers.double()(maps.double())
    return float((outputs - exact).norm() / exact.norm())


def table(options: argparse.Namespace) -> str:
    """One row for each layer and algorithm, the library's first."""
    rows = []
    for inputs, outputs, size in LAYERS:
        shape = Shape(inputs, outputs, size, options.samples, options.precision)
        seconds = measure(shape, options.rounds)
        ratio = median(seconds[LIBRARY])
        for name, times in seconds.items():
            least, middle, most = (1000 * of(times) for of in (min, median, max))
            rows.append((f"{inputs} to {outputs}, {size}x{size}", name, f"{middle:.1f}",
                         f"{least:.1f} to {most:.1f}", f"{median(times) / ratio:.2f}",
                         f"{rounding(shape, name):.1e}"))
    return markdown_table(("layer", "algorithm", "ms", "least to most", "of the library's",
                           "error"), rows, texts=2)


def main() -> None:
    parser = SentenceParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32",
                        help="of the arithmetic (default: float32)")
    parser.add_argument("--samples", type=int, default=256, metavar="N",
                        help="maps in a batch (default: 256)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N",
                        help="turns of each that count (default: 7)")
    options = parser.parse_args()
    keep_freed_memory()
    print(f"{table(options)}\n\n({options.precision}, {options.samples} samples, n = "
          f"{options.rounds}, {torch.get_num_threads()} threads; {conditions()}.)")


if __name__ == "__main__":
    run_program(main)
