"""One tensor on one rank after one step, beside what it should hold: what hypotheses look at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from studies.grading.scenarios import MOST_RANKS, Scenario, backward
from studies.grading.session import Outcome

EXACT = 1e-9
MOST_SCENARIOS = 12  # on each number of ranks; more of them would be computed twice
ENOUGH = 16  # elements that leave no doubt about which sum of other tensors they are
Values = np.ndarray


@dataclass(frozen=True)
class Truth:
    """The gradients of every rank, and the means that averaging should yield.

    `local[step][rank][tensor]` are gradients as rows; all are float64. They are already weighted,
    so that a plain mean over ranks is the gradient of one rank with the whole batch.
    """

    scenario: Scenario
    world: int
    names: Sequence[str]
    local: Sequence[Sequence[Sequence[Values | None]]]

    def told(self, tensor: int) -> str:
        """A tensor's name and place, by which other models' tensors compare (scripts/prove.py)."""
        return f"tensor {self.names[tensor]!r} ({tensor + 1} of {len(self.names)})"

    def mean(self, step: int, tensor: int) -> Values | None:
        """The mean gradient; a rank without one counts as zeros. None if all are without."""
        rows = [rank[tensor] for rank in self.local[step]]
        present = [row for row in rows if row is not None]
        return np.sum(present, 0) / len(rows) if present else None

    def counts(self, step: int) -> np.ndarray:
        """The samples of each rank."""
        return np.array(self.scenario.step_shards[step][:self.world], float)


@lru_cache(MOST_RANKS * MOST_SCENARIOS)
def truth(scenario: Scenario, world: int, secret: int) -> Truth:
    """The truth of an outcome, computed with the same model in this process."""
    names = [name for name, _ in scenario.model(0).named_parameters()]
    return Truth(scenario, world, names, [[_gradients(scenario, world, rank, step, secret)
                                           for rank in range(world)]
                                          for step in range(scenario.steps)])


def truth_of(outcome: Outcome) -> Truth:
    return truth(outcome.scenario, outcome.world, outcome.secret)


def _gradients(scenario: Scenario, world: int, rank: int, step: int,
               secret: int) -> list[Values | None]:
    model = scenario.model(rank)
    backward(model, scenario.shard(world, rank, step, secret), scenario.weight(world, rank, step))
    return [None if each.grad is None else each.grad.numpy().reshape(-1)
            for each in model.parameters()]


@dataclass(frozen=True)
class Cell:
    """The elements of one tensor that are wrong, on one rank after one step (all from 0)."""

    truth: Truth
    step: int
    rank: int
    tensor: int
    found: Values
    tolerance: float

    @property
    def name(self) -> str:
        return self.truth.names[self.tensor]

    @property
    def world(self) -> int:
        return self.truth.world

    @cached_property
    def expected(self) -> Values:
        mean = self.truth.mean(self.step, self.tensor)
        return np.zeros_like(self.found) if mean is None else mean

    @cached_property
    def scale(self) -> float:
        """The largest absolute value that any rank has computed for this tensor."""
        rows = self.locals_of(self.step, self.tensor)
        return max(float(np.abs(row).max()) for row in rows)

    @cached_property
    def wrong(self) -> np.ndarray:
        """A mask over the elements; NaN is wrong where it is not expected."""
        return ~np.isclose(self.found, self.expected, rtol=0, atol=self.tolerance * self.scale,
                           equal_nan=True)

    @property
    def is_large(self) -> bool:
        return int(self.wrong.sum()) >= ENOUGH

    def locals_of(self, step: int, tensor: int) -> list[Values]:
        """A tensor's gradients on each rank; zeros on a rank without one."""
        rows = [rank[tensor] for rank in self.truth.local[step]]
        return [np.zeros_like(self.found) if row is None else row for row in rows]

    def holds(self, row: Values | None, tolerance: float = 0.0) -> bool:
        """True if `row` has the values that stand in the wrong elements."""
        if row is None or row.size != self.found.size:
            return False
        limit = max(self.tolerance, tolerance) * self.scale
        return bool(np.all(np.abs(self.found - row)[self.wrong] <= limit))

    def weights_of(self, rows: Sequence[Values]) -> Values | None:
        """The factors by which `rows` add up to the wrong elements; None where they do not."""
        matrix = np.stack(rows, 1)[self.wrong]
        if len(matrix) < max(ENOUGH, len(rows) + 2) or not np.isfinite(self.found).all():
            return None
        try:
            factors = np.linalg.lstsq(matrix, self.found[self.wrong], rcond=None)[0]
        except np.linalg.LinAlgError:  # numbers that are too large for it
            return None
        return factors if self.holds(np.stack(rows, 1) @ factors) else None

    @cached_property
    def factors(self) -> Values | None:
        """The factors by which the ranks' gradients of this step add up to the result."""
        return self.weights_of(self.locals_of(self.step, self.tensor))


def cells(outcome: Outcome) -> Iterator[Cell]:
    """All cells of the steps that were run; one without gradient counts as zeros."""
    facts = truth_of(outcome)
    for step, seen in enumerate(each.seen for each in outcome.steps):
        for rank, one in enumerate(seen):
            for tensor, gradient in enumerate(one.gradients):
                row = _row(facts, step, tensor, gradient)
                yield Cell(facts, step, rank, tensor, row, max(EXACT, outcome.tolerance))


def _row(facts: Truth, step: int, tensor: int, gradient: np.ndarray | None) -> Values:
    if gradient is not None:
        return gradient.reshape(-1).astype(float)
    size = np.prod(dict(facts.scenario.shapes)[facts.names[tensor]])
    return np.zeros(int(size))
