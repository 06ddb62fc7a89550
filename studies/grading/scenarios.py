"""Scenarios that a strategy is tested in: tensors, shards and steps, equal but for their data.

The model of each scenario is linear in its parameters, so a gradient is a mean of known random
numbers: other ones for every rank, step, tensor and element. Whatever a strategy has done to them
can be recognised. They follow from a secret of the grader's, and each rank gets its own alone: what
others have computed can only come by messages. Gradients come from a real backward pass, so hooks
work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

MOST_RANKS = 4
Shapes = Sequence[tuple[str, tuple[int, ...]]]
Shards = Sequence[Sequence[int]]

# Of equal size, so that tensors that are exchanged leave numbers and no crash. Two have one shape;
# there are more of them than ranks.
EQUAL: Shapes = (("first.weight", (4, 6)), ("first.bias", (24,)), ("second.weight", (6, 4)),
                 ("third.weight", (4, 6)), ("last.bias", (2, 3, 4)))
# No size, nor the sum of all, is a multiple of 2, 3 or 4.
ODD: Shapes = (("stem.weight", (5, 7, 1)), ("stem.bias", (5,)), ("scale", (1,)),
               ("head.weight", (7, 11)), ("head.bias", (7,)))
LARGE: Shapes = (("first.weight", (301, 100)), ("first.bias", (301,)),
                 ("second.weight", (99, 301)), ("second.bias", (99,)))
# Samples of each rank, one row a step.
EVEN: Shards = ((3, 3, 3, 3),) * 3
UNEVEN: Shards = ((5, 2, 4, 3), (4, 1, 3, 6), (1, 2, 1, 3))
LATE_SECONDS = 0.1


@dataclass(frozen=True)
class Scenario:
    """One training of a few steps. `name` is the user's; `step_shards` has samples by rank.

    No rank's loss depends on the parameters `unused`, or only rank 0's if it `uses_all_on_first`.
    """

    name: str
    shapes: Shapes
    step_shards: Shards = EVEN
    is_strided: bool = False
    unused: Sequence[str] = ()
    is_one_late: bool = False
    has_nan: bool = False
    loses_a_peer: bool = False
    shows_costs: bool = False
    is_zero_on_one: bool = False
    uses_all_on_first: bool = False

    @property
    def is_special(self) -> bool:
        """True if it does not show on how many ranks the strategy is right."""
        return self.is_accident or self.is_zero_on_one or bool(self.unused)

    @property
    def steps(self) -> int:
        return len(self.step_shards)

    @property
    def is_accident(self) -> bool:
        """True if something goes wrong that is not the strategy's fault."""
        return self.has_nan or self.loses_a_peer

    def model(self, rank: int) -> "LinearModel":
        """The model, with equal weights on every rank, and buffers that are the rank's own."""
        unused = () if self.uses_all_on_first and rank == 0 else self.unused
        return LinearModel(self.shapes, self.is_strided, unused, rank)

    def shard(self, world: int, rank: int, step: int, secret: int) -> Tensor:
        """This rank's inputs (n, numbers), float64; other ranks' do not follow from them."""
        numbers = sum(torch.Size(shape).numel() for _, shape in self.shapes)
        place = (secret, *self.name.encode(), world, rank, step)
        inputs = torch.from_numpy(3 * np.random.default_rng(place).standard_normal(
            (self.step_shards[step][rank], numbers)))
        if self.has_nan and rank == world - 1:
            inputs[0, 2] = float("nan")
        if self.is_zero_on_one and rank == world - 1:
            inputs.zero_()
        return inputs

    def weight(self, world: int, rank: int, step: int) -> float:
        """The factor of the mean loss of this rank's inputs."""
        counts = self.step_shards[step][:world]
        return counts[rank] * world / sum(counts)


class LinearModel(nn.Module):
    """The inputs times all parameters, laid end to end: (n, numbers) becomes (n,)."""

    def __init__(self, shapes: Shapes, is_strided: bool, unused: Sequence[str], rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in shapes:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            parameter = nn.Parameter(transposed(values) if is_strided else values)
            self._place(name).register_parameter(name.split(".")[-1], parameter)
        self._unused = set(unused)
        self.register_buffer("running_mean", torch.full((3,), rank + 0.5, dtype=torch.float64))

    def _place(self, name: str) -> nn.Module:
        """The module that a parameter belongs to."""
        layer, dot, _ = name.rpartition(".")
        if not dot:
            return self
        if not hasattr(self, layer):
            self.add_module(layer, nn.Module())
        return getattr(self, layer)

    def forward(self, inputs: Tensor) -> Tensor:
        parameters = dict(self.named_parameters())
        columns = inputs.split([each.numel() for each in parameters.values()], dim=1)
        return torch.stack([piece @ parameter.reshape(-1) for piece, (name, parameter)
                            in zip(columns, parameters.items(), strict=True)
                            if name not in self._unused]).sum(0)


def transposed(values: Tensor) -> Tensor:
    """The same numbers and shape, in another order in memory where there is one."""
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def backward(model: nn.Module, inputs: Tensor, weight: float) -> None:
    """The gradients of this rank's part of the mean loss over the global batch."""
    (model(inputs).mean() * weight).backward()


BASIC = Scenario("equal shards", EQUAL, is_one_late=True)
EVERYWHERE = (
    BASIC,
    Scenario("uneven shards and a short last batch", EQUAL, UNEVEN),
    Scenario("odd sizes", ODD, UNEVEN),
    Scenario("gradients that are not contiguous", EQUAL, is_strided=True),
    Scenario("large tensors", LARGE, ((2, 2, 2, 2),) * 5, shows_costs=True),
)
UNUSED = Scenario("a parameter without gradient", EQUAL, unused=("second.weight",))
PARTLY = Scenario("a parameter with a gradient on rank 0 only", EQUAL, unused=("second.weight",),
                  uses_all_on_first=True)
ZERO = Scenario("a gradient of zeros on the last rank", EQUAL, ((3, 3, 3, 3),),
                is_zero_on_one=True)
NAN = Scenario("a NaN on the last rank", EQUAL, ((3, 3, 3, 3),), has_nan=True)
LOST = Scenario("the last rank dies", EQUAL, ((3, 3, 3, 3),) * 2, loses_a_peer=True)
PLAN: dict[int, Sequence[Scenario]] = {1: EVERYWHERE, 2: (*EVERYWHERE, UNUSED, PARTLY),
                                       3: (*EVERYWHERE, ZERO, NAN, LOST), 4: EVERYWHERE}
