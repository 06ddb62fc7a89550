"""Compares virtual nodes on any number of ranks with one rank, to the bit.

One rank's weights are hashed after every step, and kept at the end. Every other training compares
its own; where a bit differs, both train once more to say which step, tensor and element came first,
and which rank had computed another gradient before the average.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from common.cluster.node import Node
from common.core.world import World
from common.data.epoch_plan import shard_range
from common.data.loaders import Loader
from common.setup import create_training
from studies.proof.ranks import run_ranks
from studies.proof.strategies import Strategy, Wiring, alone_on_virtual_nodes
from studies.proof.trajectory import Problem, trajectory

QUANTITIES = ("weights", "statistics", "optimizer", "loss")
HEAD = ("| ranks | gradients averaged by | weights | buffers | optimizer | losses | digest | "
        "verdict |\n|--:|---|--:|--:|--:|--:|---|---|")
UpdatePlace = tuple[int, int]  # a step, counted from 1, and a parameter's place in the optimizer


class Hashes:
    """A look that hashes every weight after every step: by (step, place)."""

    def __init__(self) -> None:
        self.found: dict[UpdatePlace, str] = {}

    def __call__(self, step: int, place: int, weight: Tensor) -> None:
        self.found[step, place] = digest([weight])


class Wanted:
    """A strategy and a look that keep one weight after one step, and hash the step's gradients.

    These are the weight's, one for each of this rank's shards, before the average.
    """

    def __init__(self, strategy: Strategy, name: str, place: UpdatePlace) -> None:
        self._strategy, self._name, self._place = strategy, name, place
        self._since: list[str] = []
        self.gradients: list[str] = []
        self.weight: Tensor | None = None

    def wire(self, model: nn.Module, loader: Loader) -> Wiring:
        """The strategy's wiring of a model, whose backward passes are listened to."""
        model.get_parameter(self._name).register_hook(
            lambda gradient: self._since.append(digest([gradient])))
        return self._strategy(model, loader)

    def __call__(self, step: int, place: int, weight: Tensor) -> None:
        if place != self._place[1]:
            return
        if step == self._place[0]:
            self.weight, self.gradients = weight.clone(), self._since
        self._since = []


def digest(tensors: Iterable[Tensor]) -> str:
    """A hash of the tensors' bytes, in order."""
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hasher.update(_bytes(tensor).data)
    return hasher.hexdigest()


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def differing_bits(mine: Tensor, other: Tensor) -> int:
    """The number of bits in which two tensors of one shape and dtype differ."""
    return int(np.unpackbits(_bytes(mine) ^ _bytes(other)).sum())


def first_element(mine: Tensor, other: Tensor) -> str:
    """Names the first element in which two tensors differ, and its two values."""
    size = mine.element_size()
    unlike = (_bytes(mine) ^ _bytes(other)).reshape(-1, size).any(axis=1)
    at = int(unlike.argmax())
    index = [int(i) for i in np.unravel_index(at, mine.shape)]
    return (f"{int(unlike.sum())} elements differ, the first is {index}: "
            f"{other.flatten()[at].item()!r} instead of {mine.flatten()[at].item()!r}")


@dataclass(frozen=True)
class BitDifferences:
    """One rank's comparison: differing bits by quantity, and the first tensor of each that does.

    `begins` is the first step and place whose weight differs, if any.
    """

    bits: Mapping[str, int]
    firsts: Mapping[str, tuple[int, str]]
    begins: UpdatePlace | None
    digest: str


class BitCase(NamedTuple):
    """One training against one rank's; `why` says what differs first, "" for nothing."""

    name: str
    ranks: int
    bits: Mapping[str, int]
    digest: str
    why: str = ""


@dataclass(frozen=True)
class BitReference:
    """The results of one rank that computed all virtual nodes, in a file."""

    problem: Problem
    path: Path

    @classmethod
    def create(cls, problem: Problem, path: Path) -> "BitReference":
        """Trains on one rank and writes `path`. Raises what training raises, as a Verdict."""
        run_ranks(1, _save, problem, path, threads=problem.settings.threads)
        return cls(problem, path)

    @property
    def digest(self) -> str:
        return _whole(_load(self.path))

    def sizes(self) -> Mapping[str, int]:
        """The number of bits of each quantity."""
        learned = _load(self.path)
        return {name: sum(8 * each.numel() * each.element_size() for each in learned[name])
                for name in QUANTITIES}

    def compare(self, name: str, strategy: Strategy, ranks: int) -> BitCase:
        """Trains on `ranks` ranks, all of which must have the very same weights as one has."""
        outcomes = run_ranks(ranks, _compared_here, self.problem, strategy, self.path,
                             threads=self.problem.settings.threads)
        bits = {each: max(outcome.bits[each] for outcome in outcomes) for each in QUANTITIES}
        for rank, outcome in enumerate(outcomes):
            if any(outcome.bits.values()):
                why = self._explain(rank, outcome, strategy, ranks)
                return BitCase(name, ranks, bits, outcome.digest, why)
        return BitCase(name, ranks, bits, outcomes[0].digest)

    def _explain(self, rank: int, outcome: BitDifferences, strategy: Strategy, ranks: int) -> str:
        weights, buffers = _names(self.problem)
        if outcome.begins is None:
            quantity, (place, element) = next(iter(outcome.firsts.items()))
            of_each = len(_load(self.path)["optimizer"]) // len(weights)
            tensor = {"weights": weights, "statistics": buffers, "loss": ["of the steps"],
                      "optimizer": [name for name in weights for _ in range(of_each)]}
            return f"on rank {rank} {quantity} {tensor[quantity][place]}: {element}"
        step, place = outcome.begins
        (alone,), together = (
            run_ranks(size, _weight_after, self.problem, how, weights[place], outcome.begins,
                      threads=self.problem.settings.threads)
            for size, how in ((1, alone_on_virtual_nodes(self.problem.settings)),
                              (ranks, strategy)))
        return (f"on rank {rank} after step {step} {weights[place]}: "
                f"{first_element(alone[0], together[rank][0])}"
                + culprit(alone[1], [gradients for _, gradients in together]))


def culprit(alone: Sequence[str], by_rank: Sequence[Sequence[str]]) -> str:
    """The end of a sentence: the rank whose gradient differs before the average, if any does.

    Given are hashes, one for each shard, of one rank's and of all ranks'; "" where some are missing
    because a shard does not use the weight.
    """
    together = [each for gradients in by_rank for each in gradients]
    if len(together) != len(alone):
        return ""
    for shard, pair in enumerate(zip(alone, together, strict=True)):
        if pair[0] != pair[1]:
            rank = next(rank for rank in range(len(by_rank))
                        if shard < shard_range(rank, len(by_rank), len(alone)).end)
            return f"; rank {rank} had computed another gradient of shard {shard}"
    return "; the gradient of each shard is the same, and their mean is another"


def compared(reference: BitReference, strategies: Mapping[str, Strategy],
             sizes: Iterable[int]) -> Iterator[BitCase]:
    """Compares every strategy on every number of ranks."""
    for size in sizes:
        for name, strategy in strategies.items():
            yield reference.compare(name, strategy, size)


def title(reference: BitReference) -> str:
    """The heading of one precision's table, and the table's."""
    settings, sizes = reference.problem.settings, reference.sizes()
    of = " | ".join(f"of {sizes[name]:,}" for name in QUANTITIES)
    return (f"\n## {settings.precision}\n\n{settings.workload}, {settings.virtual_nodes} virtual "
            f"nodes, {settings.max_iterations} steps of {settings.batch_size} samples, "
            f"{settings.threads} thread{'s' * ((settings.threads or 1) > 1)} a rank. Cells: bits "
            f"that differ from one rank's.\n\n{HEAD}\n"
            f"| 1 | one rank alone, the reference | {of} | {reference.digest} | |")


def row(case: BitCase) -> str:
    """One line of the table."""
    cells = " | ".join(f"{case.bits[name]:,}" for name in QUANTITIES)
    verdict = f"FAILED: {case.why}" if case.why else "same bits"
    return f"| {case.ranks} | {case.name} | {cells} | {case.digest} | {verdict} |"


def _save(problem: Problem, path: Path) -> None:
    hashes = Hashes()
    learned = trajectory(problem, alone_on_virtual_nodes(problem.settings), hashes)
    torch.save({**{name: learned[name] for name in QUANTITIES}, "hashes": hashes.found}, path)


def _compared_here(problem: Problem, strategy: Strategy, path: Path) -> BitDifferences:
    hashes, reference = Hashes(), _load(path)
    learned = trajectory(problem, strategy, hashes)
    if torch.distributed.get_rank():  # the leader's buffers count
        learned["statistics"] = reference["statistics"]
    bits: dict[str, int] = {}
    firsts: dict[str, tuple[int, str]] = {}
    for name in QUANTITIES:
        pairs = list(zip(reference[name], learned[name], strict=True))
        counts = [differing_bits(*pair) for pair in pairs]
        bits[name] = sum(counts)
        for place, (count, pair) in enumerate(zip(counts, pairs, strict=True)):
            if count:
                firsts.setdefault(name, (place, first_element(*pair)))
    begins = min((place for place, mine in hashes.found.items()
                  if reference["hashes"].get(place) != mine), default=None)
    return BitDifferences(bits, firsts, begins, _whole(learned))


def _weight_after(problem: Problem, strategy: Strategy, name: str,
                  place: UpdatePlace) -> tuple[Tensor, list[str]]:
    wanted = Wanted(strategy, name, place)
    trajectory(problem, wanted.wire, wanted)
    assert wanted.weight is not None
    return wanted.weight, wanted.gradients


def _whole(learned: Mapping[str, Any]) -> str:
    return digest(tensor for name in QUANTITIES for tensor in learned[name])


def _names(problem: Problem) -> tuple[list[str], list[str]]:
    """Names of the parameters, in the optimizer's order, and of the buffers."""
    model, _, optimizer = create_training(problem.settings, problem.load(),
                                          Node(World(), torch.device("cpu"), 1))
    known: dict[nn.Parameter, str] = {each: name for name, each in model.named_parameters()}
    weights = [known[each] for group in optimizer.param_groups for each in group["params"]]
    return weights, [name for name, _ in model.named_buffers()]


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path, mmap=True, weights_only=True)
