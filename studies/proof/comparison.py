"""Gaps between trajectories, and the bounds on them. Pure: tensors in, numbers out.

Exact arithmetic would give N ranks the very trajectory of one. Rounding does not, because sums are
split otherwise, and every step passes the differences on to the next. So there are two bounds:

- *a priori*: c * eps * the largest element. A sum of n terms is off by about eps * sqrt(n) (Higham
  and Mary, 2019). The longest sum in a convolution's gradient has one term per sample and pixel;
  each layer adds such an error forward and again backward: c = 2 * layers * sqrt(samples * pixels).
- *measured*: FACTOR times what one rank differs from itself when its batches are reversed, its
  initial weights are off by the last bit, or it computes in float64. That changes rounding and
  nothing else, and so shows how the training itself amplifies rounding.

A quantity is held to the larger of the two, and in float64 to an absolute limit besides. The first
alone will not do in float32: where an activation lies within rounding of ReLU's kink, or of another
one in its pooling window, the gradient jumps. Of VGG-11's 3.1 million (35 CIFAR-10 images) just one
did when the batch was reversed, and the gradients' relative difference was 4e-4; with a smooth
function in place of ReLU and pooling it was 4e-7. In float64 no activation came so close.
"""

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

FACTOR = 10.0
QUANTITIES = ("loss", "first gradients", "last gradients", "weights", "statistics")
CHANGED = QUANTITIES[1:4]  # by a strategy, a tensor for each parameter


class Gap(NamedTuple):
    """The largest difference of any element, and the same over the largest element there is."""

    absolute: float
    relative: float


Gaps = Mapping[str, Gap]
"""Gaps by quantity."""


def differences(reference: Mapping[str, list[Tensor]], other: Mapping[str, list[Tensor]]) -> Gaps:
    """Gaps between `other` and `reference`, both as studies.proof.trajectory describes them.

    Raises ValueError when they do not even have the same number of tensors of the same shapes.
    """
    return {name: _gap(reference[name], other[name]) for name in QUANTITIES}


def by_tensor(reference: Mapping[str, list[Tensor]],
              other: Mapping[str, list[Tensor]]) -> Mapping[str, list[float]]:
    """The largest absolute difference in each tensor of the quantities that a strategy changes."""
    return {name: [largest([a.double() - b.double()])
                   for a, b in zip(reference[name], other[name], strict=True)] for name in CHANGED}


def _gap(reference: list[Tensor], other: list[Tensor]) -> Gap:
    if [each.shape for each in reference] != [each.shape for each in other]:
        raise ValueError("the trajectories have tensors of different shapes")
    absolute = largest(a.double() - b.double() for a, b in zip(reference, other, strict=True))
    return Gap(absolute, absolute / (largest(reference) or 1.0))


def largest(tensors: Iterable[Tensor]) -> float:
    """The largest absolute element of all; 0 for none at all, not a number if any element is."""
    tops = [each.detach().abs().max().double() for each in tensors if each.numel()]
    return float(torch.stack(tops).max()) if tops else 0.0


def worst(of_ranks: Iterable[Gaps]) -> Gaps:
    """The largest gap of any rank, by quantity; not a number if any is."""
    ranks = list(of_ranks)
    return {name: Gap(*torch.tensor([gaps[name] for gaps in ranks], dtype=torch.float64)
                      .max(dim=0).values.tolist()) for name in QUANTITIES}


def bounds(reference: Mapping[str, list[Tensor]], summands: int, perturbed: Iterable[Gaps],
           limit: float = float("inf")) -> Gaps:
    """The largest gap that each quantity may have; see the top of this file.

    `summands` is the number of samples times pixels of a batch, `perturbed` how far one rank was
    from itself.
    """
    layers = sum(weight.dim() > 1 for weight in reference["weights"])
    scale = 2 * layers * sqrt(summands) * torch.finfo(reference["weights"][0].dtype).eps
    measured = worst([*perturbed, dict.fromkeys(QUANTITIES, Gap(0.0, 0.0))])
    gaps = {}
    for name in QUANTITIES:
        top = largest(reference[name])
        allowed = min(limit, max(scale * top, FACTOR * measured[name].absolute))
        gaps[name] = Gap(allowed, allowed / (top or 1.0))
    return gaps


def beyond(gaps: Gaps, allowed: Gaps) -> list[str]:
    """The quantities whose gap is larger than allowed, or not a number."""
    return [name for name in QUANTITIES if not gaps[name].absolute <= allowed[name].absolute]
