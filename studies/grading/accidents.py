"""Findings about accidents: a NaN on one rank, and the death of another."""

import numpy as np

from studies.grading.cells import truth_of
from studies.grading.finding import Finding
from studies.grading.messages import Seen
from studies.grading.session import Outcome


def of_a_nan(outcome: Outcome) -> Finding | None:
    """Finds a NaN that vanishes or spreads: all must see it, in that element, or an exception."""
    if outcome.trouble is not None:
        waits = outcome.trouble.kind == "hangs"
        return Finding.of(outcome, "nan", f"rank {outcome.world - 1} has one, and "
                          f"{', '.join(map(str, outcome.trouble.waiting))}", 0,
                          rank=outcome.trouble.rank) if waits else None
    facts = truth_of(outcome)
    for rank, seen in enumerate(outcome.steps[0].seen):
        for tensor, (name, gradient) in enumerate(zip(facts.names, seen.gradients, strict=True)):
            expected, is_nan = (np.isnan(_row(each)) for each in (facts.mean(0, tensor), gradient))
            if (expected & ~is_nan).any():
                return Finding.of(outcome, "nan", f"{facts.told(tensor)} on rank {rank} has a "
                                  "number where the mean is NaN, so nobody notices", 0, name, rank)
            if (is_nan & ~expected).any() and not outcome.tolerance:
                return Finding.of(outcome, "nan", f"it has spread to {int(is_nan.sum())} elements "
                                  f"of {facts.told(tensor)} on rank {rank}", 0, name, rank)
    return None


def _row(gradient: np.ndarray | None) -> np.ndarray:
    return np.zeros(1) if gradient is None else gradient.reshape(-1)


def of_a_lost_peer(outcome: Outcome) -> Finding | None:
    """Finds a rank that hangs or goes on instead of ending with an exception soon."""
    trouble, lost = outcome.trouble, outcome.world - 1
    if trouble is None:
        return None
    if trouble.kind == "hangs":
        return Finding.of(outcome, "peer-lost", f"rank {lost} has died, and "
                          f"{', '.join(map(str, trouble.waiting))}", 1, rank=trouble.rank)
    for rank, answer in sorted(trouble.answers.items()):
        if isinstance(answer, Seen):
            return Finding.of(outcome, "peer-lost", f"rank {lost} has died, and rank {rank} goes "
                              "on as if nothing had happened", 1, rank=rank)
    return None
