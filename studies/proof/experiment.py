"""The comparison itself: one rank once, then every strategy on every number of ranks against it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common.cluster.node import Node
from common.core.world import World
from common.settings.user_code import Place, label
from common.setup import create_training
from studies.proof.comparison import (
    CHANGED,
    Gaps,
    beyond,
    bounds,
    by_tensor,
    differences,
    worst,
)
from studies.proof.ranks import run_ranks
from studies.proof.strategies import PERTURBATIONS, Strategy, alone, by_name
from studies.proof.trajectory import Problem, trajectory

MEASURED_BY = "all-reduce"  # what all strategies do alike is measured with one of them


@dataclass(frozen=True)
class Case:
    """One comparison with one rank. `beyond` names what was out of bounds; None: not judged.

    `tensor` says in which tensor first, and on which rank, in the words of scripts/grade.py.
    `by_tensor` holds the largest difference of each tensor by rank and quantity.
    `is_meant_to_agree` is false for another algorithm, which fails nothing by being one.
    """

    name: str
    world_size: int
    gaps: Gaps
    beyond: list[str] | None = None
    is_meant_to_agree: bool = True
    by_tensor: Sequence[Mapping[str, Sequence[float]]] = ()
    tensor: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in a word or two, or the failure."""
        if self.beyond is None:
            return "measured"
        if not self.is_meant_to_agree and self.beyond:
            return "not equivalent"
        first = [f"first in {self.tensor}"] if self.tensor else []
        return "FAILED: " + ", ".join([*self.beyond, *first]) if self.beyond else "agrees"

    @property
    def has_failed(self) -> bool:
        """True if it breaks the promise of one trajectory."""
        return bool(self.beyond) and self.is_meant_to_agree


@dataclass(frozen=True)
class Reference:
    """The results of one rank, in a file; their changes by rounding; and the bounds that follow."""

    problem: Problem
    path: Path
    perturbed: list[Case]
    allowed: Gaps

    def measure(self, name: str, strategy: Strategy, world_size: int, **changed: Any) -> Case:
        """Gaps between `world_size` ranks and one rank, with settings `changed` or not.

        `name` may be a place in a user's file.
        """
        settings = replace(self.problem.settings, **changed)
        gaps, tensors = zip(*run_ranks(world_size, _apart_here, replace(
            self.problem, settings=settings), strategy, self.path, place=Place.parse(name)),
            strict=True)
        return Case(label(name), world_size, worst(gaps), by_tensor=tensors)

    def judge(self, name: str, strategy: Strategy, world_size: int, is_meant_to_agree: bool = True,
              **changed: Any) -> Case:
        """Measures a case, and holds it to the bounds."""
        case = self.measure(name, strategy, world_size, **changed)
        return replace(case, beyond=beyond(case.gaps, self.allowed),
                       is_meant_to_agree=is_meant_to_agree, tensor=self._first_tensor(case))

    def _first_tensor(self, case: Case) -> str:
        """The first tensor that is out of bounds, on the first rank where one is; "" for none."""
        wrong = ((name, rank, place) for name in CHANGED for rank, gaps in enumerate(case.by_tensor)
                 for place, gap in enumerate(gaps[name])
                 if not gap <= self.allowed[name].absolute)
        for name, rank, place in wrong:
            names = _names(self.problem, only_trained=name != "weights")
            return f"tensor {names[place]!r} ({place + 1} of {len(names)}) on rank {rank}"
        return ""


def create_reference(problem: Problem, path: Path, limit: float = float("inf")) -> Reference:
    """Trains on one rank, writes its trajectory to `path`, and finds the bounds.

    No bound is larger than `limit`. Raises what training raises, as a Verdict.
    """
    run_ranks(1, _save, problem, path)
    reference = Reference(problem, path, [], {})
    perturbed = [reference.measure("one rank, " + name, strategy, 1, **changed)
                 for name, (strategy, changed) in PERTURBATIONS.items()
                 if changed.get("precision") != problem.settings.precision]
    inputs, _ = problem.load().take([0])
    summed = inputs[0] if inputs.ndim < 3 else inputs[0, ..., 0]  # all but an image's channels
    summands = problem.settings.batch_size * summed.numel()
    allowed = bounds(_load(path), summands, [case.gaps for case in perturbed], limit)
    return replace(reference, perturbed=perturbed, allowed=allowed)


def judged(reference: Reference, strategies: Mapping[str, Strategy], sizes: Iterable[int],
           are_meant_to_agree: bool = True) -> Iterator[Case]:
    """Compares every strategy on every number of ranks, held to the reference's bounds."""
    for size in sizes:
        for name, strategy in strategies.items():
            yield reference.judge(name, strategy, size, are_meant_to_agree)


def accumulated(reference: Reference, passes: Iterable[int]) -> Iterator[Case]:
    """One rank that takes each step in several passes, held to the reference's bounds.

    None at all where each pass would have batch statistics of its own.
    """
    if (reference.problem.settings.batch_norm == "synchronised"
            and _load(reference.path)["statistics"]):
        return
    for count in passes:
        yield reference.judge(f"one rank, {count} passes a step", alone, 1, accumulate=count)


def local_statistics(reference: Reference, sizes: Iterable[int]) -> Iterator[Case]:
    """Gaps between ranks and one rank when each normalises by its own shard's statistics.

    Measured with one strategy, as all do the same; not judged: it cannot agree. The reference must
    have synchronised statistics, which on one rank are local ones. Nothing without batch norm.
    """
    for size in sizes:
        if size > 1 and _load(reference.path)["statistics"]:
            yield reference.measure(f"{MEASURED_BY}, local statistics",
                                    by_name(MEASURED_BY), size, batch_norm="local")


def _save(problem: Problem, path: Path) -> None:
    torch.save(trajectory(problem, alone), path)


def _apart_here(problem: Problem, strategy: Strategy,
                path: Path) -> tuple[Gaps, Mapping[str, list[float]]]:
    """Gaps between this rank's training and one rank's, and the same by tensor."""
    reference, learned = _load(path), trajectory(problem, strategy)
    return differences(reference, learned), by_tensor(reference, learned)


def _names(problem: Problem, only_trained: bool) -> list[str]:
    model, *_ = create_training(problem.settings, problem.load(),
                                Node(World(), torch.device("cpu"), 1))
    return [name for name, each in model.named_parameters()
            if each.requires_grad or not only_trained]


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path, mmap=True, weights_only=True)
