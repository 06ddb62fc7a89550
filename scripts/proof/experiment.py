"""The comparison itself: one rank once, then every strategy on every number of ranks against it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.proof.comparison import Gaps, beyond, bounds, differences, worst
from scripts.proof.ranks import run_ranks
from scripts.proof.strategies import PERTURBATIONS, Strategy, alone, by_hand
from scripts.proof.trajectory import Problem, Trajectory, trajectory

MEASURED_LOCALLY = "all-reduce"


@dataclass(frozen=True)
class Case:
    """One comparison with one rank. `beyond` names what was out of bounds; None: not judged.

    `is_meant_to_agree` is false for another algorithm, which fails nothing by being one.
    """

    name: str
    world_size: int
    gaps: Gaps
    beyond: list[str] | None = None
    is_meant_to_agree: bool = True

    @property
    def verdict(self) -> str:
        """A word or two, or what failed."""
        if self.beyond is None:
            return "measured"
        if not self.is_meant_to_agree and self.beyond:
            return "not equivalent"
        return "FAILED: " + ", ".join(self.beyond) if self.beyond else "agrees"

    @property
    def has_failed(self) -> bool:
        """Whether it breaks the promise of one trajectory."""
        return bool(self.beyond) and self.is_meant_to_agree


@dataclass(frozen=True)
class Reference:
    """What one rank learned, in a file; what rounding does to it; the bounds that follow."""

    problem: Problem
    path: Path
    perturbed: list[Case]
    allowed: Gaps

    def against(self, strategy: Strategy, world_size: int, **changed: Any) -> Gaps:
        """How far any of `world_size` ranks ends from one rank, settings `changed` or not."""
        settings = replace(self.problem.settings, **changed)
        return worst(run_ranks(world_size, _gaps_here, replace(self.problem, settings=settings),
                               strategy, self.path))


def create_reference(problem: Problem, path: Path, limit: float = float("inf")) -> Reference:
    """Trains on one rank, writes its trajectory to `path`, and finds the bounds.

    No bound is larger than `limit`. Raises what training raises, as a Verdict.
    """
    run_ranks(1, _save, problem, path)
    reference = Reference(problem, path, [], {})
    perturbed = [Case("one rank, " + name, 1, reference.against(way.strategy, 1,
                                                                **way.changed_settings))
                 for name, way in PERTURBATIONS.items()
                 if way.changed_settings.get("precision") != problem.settings.precision]
    images = problem.load().images
    summands = problem.settings.batch_size * images.shape[1] * images.shape[2]
    allowed = bounds(_load(path), summands, [case.gaps for case in perturbed], limit)
    return replace(reference, perturbed=perturbed, allowed=allowed)


def judged(reference: Reference, strategies: Mapping[str, Strategy], sizes: Iterable[int],
           are_meant_to_agree: bool = True) -> Iterator[Case]:
    """Every strategy on every number of ranks, held to the reference's bounds."""
    for size in sizes:
        for name, strategy in strategies.items():
            gaps = reference.against(strategy, size)
            yield Case(name, size, gaps, beyond(gaps, reference.allowed), are_meant_to_agree)


def accumulated(reference: Reference, passes: Iterable[int]) -> Iterator[Case]:
    """One rank that takes each step in several passes, held to the reference's bounds.

    None at all where each pass would have batch statistics of its own.
    """
    if (reference.problem.settings.batch_norm == "synchronised"
            and _load(reference.path)["statistics"]):
        return
    for count in passes:
        gaps = reference.against(alone, 1, accumulate=count)
        yield Case(f"one rank, {count} passes a step", 1, gaps, beyond(gaps, reference.allowed))


def local_statistics(reference: Reference, sizes: Iterable[int]) -> Iterator[Case]:
    """How far ranks end from one rank when each normalises by its own share's statistics.

    Measured with one strategy, as all do the same; not judged: it cannot agree. The reference must
    have synchronised statistics, which on one rank are local ones. Nothing without batch norm.
    """
    for size in sizes:
        if size > 1 and _load(reference.path)["statistics"]:
            gaps = reference.against(partial(by_hand, MEASURED_LOCALLY), size, batch_norm="local")
            yield Case(f"{MEASURED_LOCALLY}, local statistics", size, gaps)


def _save(problem: Problem, path: Path) -> None:
    torch.save(trajectory(problem, alone), path)


def _gaps_here(problem: Problem, strategy: Strategy, path: Path) -> Gaps:
    """On each rank: trains, and compares with the reference."""
    return differences(_load(path), trajectory(problem, strategy))


def _load(path: Path) -> Trajectory:
    return torch.load(path, mmap=True, weights_only=True)
