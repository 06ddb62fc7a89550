"""Differences of the weights from one rank's after each step: the curve that a proof draws.

One rank's weights are kept; every other training compares its own in passing, since copies of
each would be gigabytes. Both are handed each weight as the optimizer has changed it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

MOST_LOOKS = 10  # copies of the weights on disk, however many steps there are


def looked_after(steps: int) -> list[int]:
    """The steps, counted from 1, after which weights are compared: the last one is among them."""
    return sorted({round(place) for place in np.linspace(1, steps, min(steps, MOST_LOOKS))})


class Kept:
    """Copies of the weights after some steps: `weights[look][place]`."""

    def __init__(self, steps: int) -> None:
        self._looks = {step: look for look, step in enumerate(looked_after(steps))}
        self.weights: list[dict[int, Tensor]] = [{} for _ in self._looks]

    def __call__(self, step: int, place: int, weight: Tensor) -> None:
        """Copies the weight at `place` after `step`."""
        if step in self._looks:
            self.weights[self._looks[step]][place] = weight.clone()


class Compared:
    """The largest absolute difference of any weight from the kept ones, after each of the looks."""

    def __init__(self, steps: int, kept: Sequence[Mapping[int, Tensor]]) -> None:
        self._looks = {step: look for look, step in enumerate(looked_after(steps))}
        self._kept = kept
        self.gaps = [0.0] * len(kept)

    def __call__(self, step: int, place: int, weight: Tensor) -> None:
        """Looks at the weight at `place` after `step`."""
        if step in self._looks:
            look = self._looks[step]
            gap = torch.linalg.vector_norm(weight - self._kept[look][place], float("inf"))
            self.gaps[look] = float(np.maximum(self.gaps[look], gap.item()))  # keeps a NaN
