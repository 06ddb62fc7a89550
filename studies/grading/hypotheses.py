"""Hypotheses about a wrong gradient: one row each, and adding one is adding a row.

Each is asked about the cells that are wrong, and answers with what it sees there; the first that
explains all of them is the diagnosis.
"""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from studies.grading.cells import EXACT, Cell
from studies.grading.rounding import near, rounded, single_precision


class Hypothesis(NamedTuple):
    """`explains` returns what it sees in a cell, or None. `first_step` is the first it is about."""

    id: str
    explains: Callable[[Cell], str | None]
    first_step: int = 0


def local(cell: Cell) -> str | None:
    """Matches the gradient before averaging."""
    if cell.holds(cell.locals_of(cell.step, cell.tensor)[cell.rank]):
        return "still holds that rank's own gradient"
    return None


def total(cell: Cell) -> str | None:
    """Matches a sum that was not divided."""
    if cell.holds(np.sum(cell.locals_of(cell.step, cell.tensor), 0)):
        return f"holds the sum over {cell.world} ranks, not divided by {cell.world}"
    return None


def another_divisor(cell: Cell) -> str | None:
    """Matches a sum divided by something other than the number of ranks."""
    whole = np.sum(cell.locals_of(cell.step, cell.tensor), 0)
    factors = cell.weights_of([whole])
    if factors is None or not factors[0]:
        return None
    divisor = 1 / factors[0]
    is_twice = cell.world > 2 and np.isclose(divisor, cell.world ** 2)
    twice = ", that is twice," if is_twice else ""
    return f"holds the sum divided by {divisor:.4g}{twice} instead of by {cell.world}"


def weighted_again(cell: Cell) -> str | None:
    """Matches factors that depend on each rank's samples, which the loss has already."""
    if cell.factors is None:
        return None
    counts = cell.truth.counts(cell.step)
    share = counts / counts.sum()
    known = {"weighted by its number of samples once more": [share, share * cell.world],
             "freed of the weight that the loss has": [1 / cell.world ** 2 / share,
                                                        1 / cell.world / share]}
    for sentence, weights in known.items():
        if any(np.allclose(cell.factors, each) for each in weights):
            return f"holds a mean in which each rank is {sentence}"
    return None


def stale(cell: Cell) -> str | None:
    """Matches gradients of earlier steps, alone or together with this one's."""
    if cell.step and cell.holds(cell.truth.mean(cell.step - 1, cell.tensor)):
        return "holds the mean of the step before"
    rows = [row for step in range(cell.step + 1) for row in cell.locals_of(step, cell.tensor)]
    factors = cell.weights_of(rows) if cell.step else None
    if factors is None or np.allclose(factors[:-cell.world], 0, atol=1e-6):
        return None
    return "holds gradients of an earlier step"


def zero(cell: Cell) -> str | None:
    return "is zero" if cell.holds(np.zeros_like(cell.found)) else None


def another_tensor(cell: Cell) -> str | None:
    """Matches a mean that belongs elsewhere: to another tensor, or other elements of this one."""
    for tensor, name in enumerate(cell.truth.names):
        if tensor != cell.tensor and cell.holds(cell.truth.mean(cell.step, tensor)):
            return f"holds the mean of {name!r}"
    if np.allclose(np.sort(cell.found), np.sort(cell.expected), rtol=0,
                   atol=cell.tolerance * cell.scale):
        return "holds the right numbers in the wrong places: its shape was mixed up"
    means = [cell.truth.mean(cell.step, each) for each in range(len(cell.truth.names))]
    flat = np.concatenate([each for each in means if each is not None])
    for start in np.flatnonzero(np.abs(flat - cell.found[0]) <= cell.tolerance * cell.scale):
        window = flat[start:start + cell.found.size]
        if cell.holds(window):
            return "holds numbers of its neighbours: it was cut out of the flat row elsewhere"
    return None


def other_order(cell: Cell) -> str | None:
    """Matches the sum of one tensor here and of another one there."""
    alike = [tensor for tensor in range(len(cell.truth.names))
             if cell.truth.local[cell.step][0][tensor] is not None
             and cell.locals_of(cell.step, tensor)[0].size == cell.found.size]
    factors = cell.weights_of([row for tensor in alike
                               for row in cell.locals_of(cell.step, tensor)])
    if factors is None:
        return None
    used = np.abs(factors.reshape(len(alike), cell.world)) > 1e-6
    names = [cell.truth.names[alike[place]] for place in np.flatnonzero(used.any(1))]
    if len(names) < 2:
        return None
    return f"adds {names[0]!r} of one rank to {names[1]!r} of another"


def some_ranks(cell: Cell) -> str | None:
    """Matches the mean, or the sum, of some of the ranks."""
    factors = cell.factors
    if factors is None:
        return None
    used = np.abs(factors) > 1e-6
    if used.all() or not used.any() or not np.allclose(factors[used], factors[used][0]):
        return None
    return f"holds what comes of {_ranks(np.flatnonzero(used))} alone"


def unequal(cell: Cell) -> str | None:
    """Matches any other sum of this step's gradients of this tensor."""
    if cell.factors is None:
        return None
    parts = " + ".join(f"{factor:.4g} × rank {rank}" for rank, factor in enumerate(cell.factors)
                       if abs(factor) > 1e-6)
    return f"holds {parts}"


def in_chunks(cell: Cell) -> str | None:
    """Matches sums of some ranks in some elements: chunks passed on too early, or not at all."""
    if cell.tolerance > EXACT:
        return None
    parts = np.stack(cell.locals_of(cell.step, cell.tensor))
    known = {(chosen, divisor): parts[list(chosen)].sum(0) / divisor
             for size in range(1, cell.world + 1)
             for chosen in combinations(range(cell.world), size) for divisor in (1, cell.world)}
    fits = {key: np.abs(cell.found - row) <= EXACT * cell.scale for key, row in known.items()}
    if not np.any(list(fits.values()), axis=0)[cell.wrong].all():
        return None
    first = int(np.flatnonzero(cell.wrong)[0])
    (ranks, divisor), fit = next(each for each in fits.items() if each[1][first])
    after = np.flatnonzero(~fit[first:])
    last = first + int(after[0]) - 1 if len(after) else fit.size - 1
    return (f"holds in elements {first} to {last} of {fit.size} what comes of "
            f"{_ranks(np.array(ranks))}" + f", divided by {divisor}" * (divisor > 1))


def another_operation(cell: Cell) -> str | None:
    """Matches another reduction of the ranks' numbers: largest, smallest or product."""
    parts = cell.locals_of(cell.step, cell.tensor)
    known: dict[str, Callable] = {"largest": np.max, "smallest": np.min, "product": np.prod}
    return next((f"holds the {name} of the ranks' numbers" for name, reduce in known.items()
                 if cell.holds(reduce(parts, 0))), None)


def _ranks(ranks: np.ndarray) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(map(str, ranks))


HYPOTHESES = (
    Hypothesis("nothing-averaged", local),
    Hypothesis("sum-not-divided", total),
    Hypothesis("wrong-divisor", another_divisor),
    Hypothesis("weighted-again", weighted_again),
    Hypothesis("zero", zero),
    Hypothesis("float32-arithmetic", single_precision),
    Hypothesis("rounded", rounded),
    Hypothesis("stale", stale, first_step=1),
    Hypothesis("mixed-shapes", another_tensor),
    Hypothesis("wrong-order", other_order),
    Hypothesis("ranks-left-out", some_ranks),
    Hypothesis("ranks-count-unequally", unequal),
    Hypothesis("another-operation", another_operation),
    Hypothesis("chunks", in_chunks),
    Hypothesis("rounded", near),
)
