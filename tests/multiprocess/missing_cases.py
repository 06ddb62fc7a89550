"""Random models of which some ranks lack gradients, and what they learn on one rank in float64.

A model is a few cells, each with a parameter of its own. In every pass each rank uses some of them:
others are absent, or used times zero. They may be frozen, shared, empty, or of other dtypes; two
are always of one shape and dtype, as experts are.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.data.epoch_plan import shard_range
from common.step.gradient_sync import GradientSync
from PartThree.ddp import OWN_BUFFERS, AveragedInBackward, AveragedOnVirtualNodes, buckets
from PartTwo.strategies import SyncOptions, create_strategy
from tests.ranks import ROOT

STEPS, RATE, MOMENTUM, DECAY = 4, 0.1, 0.9, 0.2
SHAPES = ((4, 6), (24,), (3, 2, 4), (5,), (1,), (0,), (2, 3, 2, 2))
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.06}
ABSENT, ZERO, IN_USE = "absent", "zero", "in use"
FROZEN, UNUSED, THAWS, FREEZES, PLAIN = "frozen", "never used", "thaws", "freezes", "plain"


@dataclass(frozen=True)
class Case:
    """The choices that the seed decides; `is_uneven` lets ranks differ in what they train."""

    seed: int
    is_uneven: bool = False

    @cached_property
    def ranks(self) -> int:
        return 2 + self.seed % 3

    @cached_property
    def shards(self) -> int:
        """Virtual nodes where the strategy has them; at least one a rank."""
        return self.ranks + random.Random(self.seed).randrange(4)

    @cached_property
    def passes(self) -> int:
        """The passes of a rank in a step, without virtual nodes."""
        return 1 + self.seed % 2

    @cached_property
    def cells(self) -> list[tuple[tuple[int, ...], torch.dtype, list[str]]]:
        """Shape, dtype and kind by rank; the last cell shares the first one's parameter."""
        dice = random.Random(f"cells {self.seed}")
        dtypes = dice.choice([[torch.float64], [torch.float64], [torch.float32],
                              [torch.float64, torch.float32, torch.bfloat16],
                              [torch.bfloat16], [torch.float32, torch.float16]])
        expert = dice.choice(SHAPES[:3]), dice.choice(dtypes)
        kinds = [expert, expert, *((dice.choice(SHAPES), dice.choice(dtypes))
                                   for _ in range(dice.randrange(1, 5)))]
        return [(shape, dtype, self._kinds(dice, number))
                for number, (shape, dtype) in enumerate(kinds)]

    def _kinds(self, dice: random.Random, number: int) -> list[str]:
        if number == 0:
            return [PLAIN] * self.ranks
        choices = [*[PLAIN] * 6, UNUSED, FROZEN, FREEZES]
        if not self.is_uneven:
            return [dice.choice(choices)] * self.ranks
        return [dice.choice([*choices, FROZEN, FREEZES, THAWS]) for _ in range(self.ranks)]

    def uses(self, rank: int, step: int, turn: int) -> list[str]:
        """How the `turn`-th pass of a rank uses each cell, and the cell that is shared."""
        dice = random.Random(f"uses {self.seed} {rank} {step} {turn}")
        everybody = random.Random(f"everybody {self.seed} {step}")
        found = []
        for _, _, kinds in self.cells:
            nobody = everybody.random() < 0.15 or UNUSED in kinds
            found.append(ABSENT if nobody else dice.choice([ABSENT, ZERO, IN_USE, IN_USE]))
        return [*found, dice.choice([ABSENT, IN_USE])]

    def _trains(self, rank: int, step: int, number: int) -> bool:
        kind = self.cells[number][2][rank]
        return {FROZEN: False, FREEZES: step < 2, THAWS: step >= 2}.get(kind, True)

    def trains(self, rank: int, step: int) -> list[bool]:
        return [self._trains(rank, step, number) for number in range(len(self.cells))]

    def weight(self, rank: int, step: int, turn: int) -> float:
        return random.Random(f"weight {self.seed} {rank} {step} {turn}").uniform(0.5, 1.5)

    def noise(self, rank: int, step: int, turn: int, number: int) -> Tensor:
        shape = self.cells[number % len(self.cells)][0]
        generator = torch.Generator().manual_seed(
            (((self.seed * 5 + rank) * 7 + step) * 11 + turn) * 13 + number)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def first_weights(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
                for shape, dtype, _ in self.cells]


class Cell(nn.Module):
    """One parameter times coefficients, and a little of its square."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.weight = parameter

    def forward(self, coefficients: Tensor, factor: float) -> Tensor:
        wide = self.weight.double()
        return factor * ((coefficients * wide).sum() + 0.05 * wide.square().sum())


class Cells(nn.Module):
    """The sum of those cells that a pass uses."""

    def __init__(self, case: Case, rank: int) -> None:
        super().__init__()
        parameters = [nn.Parameter(each) for each in case.first_weights()]
        for parameter, is_trained in zip(parameters, case.trains(rank, 0), strict=True):
            parameter.requires_grad_(is_trained)
        self.cells = nn.ModuleList(map(Cell, [*parameters, parameters[0]]))

    def forward(self, uses: Sequence[str], coefficients: Sequence[Tensor]) -> Tensor:
        return torch.stack([cell(each, float(use == IN_USE)) for cell, use, each
                            in zip(self.cells, uses, coefficients, strict=True)
                            if use != ABSENT]).sum()


def turns_of(case: Case, rank: int, virtual: bool) -> list[tuple[int, int]]:
    """(whose, turn) of each pass of a rank: the shards of a virtual run are ranks of their own."""
    if not virtual:
        return [(rank, turn) for turn in range(case.passes)]
    shards = shard_range(rank, case.ranks, case.shards)
    return [(shard, 0) for shard in range(shards.first, shards.end)]


def coefficients(case: Case, whose: int, step: int, turn: int) -> list[Tensor]:
    return [case.noise(whose, step, turn, number) for number in range(len(case.cells) + 1)]


def uses_of(case: Case, rank: int, whose: int, step: int, turn: int) -> list[str]:
    """The uses by the shard `whose`, which are backward's only if the rank trains something."""
    found = case.uses(whose % case.ranks, step, turn + whose)
    if all(use == ABSENT or not trained for use, trained
           in zip(found, case.trains(rank, step), strict=False)):
        found[0] = IN_USE
    return found


def learned(case: Case, name: str, virtual: bool, options: SyncOptions) -> list[Tensor]:
    """The weights after STEPS steps on this rank."""
    rank = dist.get_rank()
    model: nn.Module = Cells(case, rank)
    own = list(model.parameters())
    optimizer = torch.optim.SGD(own, RATE, MOMENTUM, weight_decay=DECAY)
    options = options._replace(virtual_nodes=case.shards if virtual else None)
    forward, sync = seam(name, model, options)
    sync.prepare(model, optimizer)
    for step in range(STEPS):
        for parameter, is_trained in zip(own, case.trains(rank, step), strict=True):
            if step and parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)
        optimizer.zero_grad()
        turns = turns_of(case, rank, virtual)
        for whose, turn in turns[:-1]:
            with sync.no_sync():
                backward(case, forward, rank, step, whose, turn)
        backward(case, forward, rank, step, *turns[-1])
        sync.average([each.grad for each in own if each.grad is not None])
        optimizer.step()
    sync.settle()
    return [each.detach() for each in own]


def backward(case: Case, model: nn.Module, rank: int, step: int, whose: int, turn: int) -> None:
    uses = uses_of(case, rank, whose, step, turn)
    loss = model(uses, coefficients(case, whose, step, turn))
    (loss * case.weight(whose, step, turn)).backward()


def seam(name: str, model: nn.Module, options: SyncOptions) -> tuple[nn.Module, GradientSync]:
    """The module that computes the loss, and the strategy that averages."""
    if name == "ddp":
        replica = DistributedDataParallel(model, **OWN_BUFFERS, **buckets(options.bucket_mb))
        return replica, (AveragedOnVirtualNodes(replica, options) if options.virtual_nodes
                         else AveragedInBackward(replica, options.wire))
    if ".py:" in name:
        return model, create_strategy(f"{ROOT}/{name}")
    return model, create_strategy(name, options)


class Reference:
    """The same training in float64, of all ranks at once.

    A parameter without gradient stays as it is, or with `zeros`, as local SGD has it, gets zeros.
    """

    def __init__(self, case: Case, virtual: bool, zeros: bool = False) -> None:
        self._case, self._virtual, self._zeros = case, virtual, zeros
        self._ranks = case.ranks
        self.weights = [each.double() for each in case.first_weights()]
        self._momenta: list[Tensor | None] = [None] * len(self.weights)

    def learned(self) -> list[Tensor]:
        for step in range(STEPS):
            for number, gradient in enumerate(self._gradients(step)):
                if gradient is not None:
                    self._update(number, gradient)
        return self.weights

    def _update(self, number: int, gradient: Tensor) -> None:
        weight, kept = self.weights[number], self._momenta[number]
        wanted = gradient + DECAY * weight
        self._momenta[number] = wanted if kept is None else MOMENTUM * kept + wanted
        self.weights[number] = weight - RATE * self._momenta[number]

    def _gradients(self, step: int) -> list[Tensor | None]:
        found: list[Tensor | None] = [
            torch.zeros_like(weight) if self._zeros and is_trained else None for weight, is_trained
            in zip(self.weights, self._case.trains(0, step), strict=True)]
        parts = self._case.shards if self._virtual else self._ranks
        for rank in range(self._ranks):
            for whose, turn in turns_of(self._case, rank, self._virtual):
                self._add(found, rank, step, whose, turn, parts)
        return found

    def _add(self, found: list[Tensor | None], rank: int, step: int, whose: int, turn: int,
             parts: int) -> None:
        case = self._case
        factor = case.weight(whose, step, turn) / parts
        for number, (use, noise) in enumerate(zip(
                uses_of(case, rank, whose, step, turn), coefficients(case, whose, step, turn),
                strict=True)):
            own = number % len(case.cells)
            if use == ABSENT or not case.trains(rank, step)[own]:
                continue
            gradient = (use == IN_USE) * factor * (noise + 0.1 * self.weights[own])
            before = found[own]
            found[own] = gradient if before is None else before + gradient

