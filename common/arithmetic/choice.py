"""Choice of the algorithm for each 3x3 convolution on a CPU, by a rule.

The rule knows the layer's shape, the precision, the global batch and, with native arithmetic, the
processor's instruction sets. It knows nothing of speed, load or the number of ranks and threads:
algorithms round differently, so the same command must choose the same ones on a busy day.

    python3 -c "from common.arithmetic.choice import *; print(rule_in_words('float32', 256))"
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from common.arithmetic import kernels
from common.arithmetic.bilinear import fits
from common.arithmetic.convolution import compute_by, is_plain_3x3
from common.arithmetic.fused_layers import FUSED, fusable, fuse
from common.arithmetic.products import is_portable, way_of
from common.core.collectives import broadcast_bytes
from common.core.precision import Precision
from common.core.provenance import instruction_sets

LIBRARY, AUTO = "library", "auto"
POOLED_LAST = "library, pooled last"  # of a run that was asked for the library
# In bf16 torch's own convolution is 0.2 % of its outputs off, with tiles of bfloat16 winograd-2
# 0.6 % and winograd-4 1.7 %, with tiles of float32 both 0.2 %: docs/recipe.md has the accuracies.
CANDIDATES = ("toeplitz", "winograd-4", "winograd-2")
# Of maps, and of images, for which times were measured.
SIZES, IMAGES = (2, 4, 8, 16), 32
# With fewer channels the transforms cost more than the products save.
FEWEST_CHANNELS = 64
# On maps of 4x4, winograd-4's transformed filters, four times the size of the filters, cost more
# than its products save when a batch is smaller.
MANY_SAMPLES = 128


class Shape(NamedTuple):
    """A convolution from `inputs` to `outputs` channels, of a batch of maps of `size` x `size`.

    `samples` is the size of the global batch.
    """

    inputs: int
    outputs: int
    size: int
    samples: int
    precision: str

    def candidates(self) -> list[str]:
        if self.precision == "fp16":  # transforms would overflow
            return []
        if self.inputs < FEWEST_CHANNELS:
            return [] if self.size % 2 else [FUSED]
        return [name for name in CANDIDATES if fits(name, self.size)]

    def __str__(self) -> str:
        return (f"{self.inputs} to {self.outputs} channels, {self.size}x{self.size} maps, "
                f"{self.samples} samples, {self.precision}")


def by_rule(shape: Shape) -> str:
    """The algorithm for `shape` on this processor; docs/one_node.md has the times behind it.

    With the library stays what no time was measured for: maps larger than 16x16, images of other
    sizes than 32x32, all in fp16 and where nothing can be compiled; and, in native arithmetic,
    processors without AVX2, and images without AVX-512. Portable arithmetic does not look at the
    processor. Where AMX multiplies tiles of bf16 the rule takes what rounds little: winograd-4 cost
    perhaps a quarter of a point of accuracy there.
    """
    sets = _processor()
    if "AVX" not in sets or kernels.why_not() or not shape.candidates():
        return LIBRARY
    if shape.inputs < FEWEST_CHANNELS:
        return FUSED if "AVX512" in sets and shape.size == IMAGES else LIBRARY
    if shape.size not in SIZES:
        return LIBRARY
    if shape.size == 2:
        return "toeplitz"
    if "AMX" in sets and shape.precision == "bf16":
        return "winograd-2" if shape.size == 4 else LIBRARY
    return "winograd-2" if shape.size == 4 and shape.samples < MANY_SAMPLES else "winograd-4"


def rule_in_words(precision: str, samples: int) -> str:
    """The rule's choices here, for the banner: "toeplitz on 2x2, … (rule for AVX512)"."""
    chosen = {size: by_rule(Shape(FEWEST_CHANNELS, FEWEST_CHANNELS, size, samples, precision))
              for size in SIZES}
    chosen_here = [f"{name} on {size}x{size}" for size, name in chosen.items() if name != LIBRARY]
    if by_rule(Shape(1, FEWEST_CHANNELS, IMAGES, samples, precision)) == FUSED:
        chosen_here.append("fused on images")
    return ", ".join([*chosen_here, "torch's elsewhere" if chosen_here else "torch's"]) + \
        (" (portable)" if is_portable() else f" (rule for {instruction_sets()})")


def _processor() -> str:
    """The instruction sets that the rule goes by."""
    return "AVX512" if is_portable() else instruction_sets()


def use_fast_convolutions(model: nn.Module, image_shape: tuple[int, ...], samples: int,
                          precision: Precision, how: str) -> None:
    """Gives the layers of `model` the algorithms that suit them, in place; on a CPU.

    `image_shape` is (C, H, W), `samples` the global batch's. `how`: "auto" is by rule, "library"
    changes nothing, and what `algorithms` said of the run that is to be resumed does that again.
    Every rank must call, with the same arguments: all do as the leader does, so that tiles round
    alike on different processors. What is fused is the library's on a rank without a compiler.
    """
    if how in (LIBRARY, POOLED_LAST) or next(model.parameters()).device.type != "cpu":
        return
    shapes = convolution_shapes(model, image_shape, samples, precision)
    names = _as_before(model, shapes, how) or _leaders_choice(list(shapes.values()))
    parts = fusable(model)
    for layer, name in zip(shapes, names, strict=True):
        if name == FUSED and not kernels.why_not():  # else what ran is the library's
            fuse(parts[layer])
        elif name not in (FUSED, LIBRARY):
            compute_by(name, layer)
    if set(names) - {LIBRARY}:
        kernels.library()  # the first run on a machine compiles it, and no step shall wait for that


def algorithms(model: nn.Module) -> str:
    """The algorithms of the convolutions of `model`, in the order of its layers."""
    names = [getattr(layer, "algorithm", LIBRARY) for layer in model.modules()
             if isinstance(layer, nn.Conv2d)]
    return " ".join(names) if set(names) - {LIBRARY} else LIBRARY


def products(model: nn.Module, precision: Precision) -> str:
    """The implementation that multiplies the algorithms' tiles; it depends on the processor."""
    has_tiles = set(algorithms(model).split()) - {LIBRARY, FUSED}
    return str(way_of(precision.products)) if has_tiles else LIBRARY


def _as_before(model: nn.Module, shapes: Mapping[nn.Conv2d, Shape], how: str) -> list[str]:
    """The algorithms that `how` lists for `shapes`; [] if it is not a list for this model."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    named = dict(zip(layers, how.split(), strict=False))
    names = [named.get(layer, "") for layer in shapes]
    possible = all(name in (LIBRARY, *shape.candidates())
                   for name, shape in zip(names, shapes.values(), strict=True))
    return names if possible and len(how.split()) == len(layers) else []


def _leaders_choice(shapes: list[Shape]) -> list[str]:
    """One name for each shape. Every rank must call; only the leader's rule counts."""
    names = b""
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        names = json.dumps([by_rule(shape) for shape in shapes]).encode()
    return json.loads(broadcast_bytes(names, torch.device("cpu")) or b"[]")


def convolution_shapes(model: nn.Module, image_shape: tuple[int, ...], samples: int,
                       precision: Precision) -> dict[nn.Conv2d, Shape]:
    """The layers for which there is a candidate. Runs `model` once, to see the maps' sizes."""
    shapes: dict[nn.Conv2d, Shape] = {}
    first = fusable(model)
    layers = [layer for layer in model.modules()
              if is_plain_3x3(layer) and (layer in first or _has_many_channels(layer))]
    if not layers:
        return shapes

    def note(layer: nn.Conv2d, inputs: tuple[Tensor]) -> None:
        height, width = inputs[0].shape[-2:]
        shape = Shape(layer.in_channels, layer.out_channels, height, samples, precision.name)
        if height == width and shape.candidates():
            shapes[layer] = shape

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *image_shape, dtype=precision.dtype))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return shapes


def _has_many_channels(layer: nn.Conv2d) -> bool:
    return min(layer.in_channels, layer.out_channels) >= FEWEST_CHANNELS
