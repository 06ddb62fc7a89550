"""When to stop for want of progress: pure functions of the history of validation losses.

The history stands in the checkpoint, so a resumed run stops where the other would have.

    python3 PartOne/main.py --workload spiral-mlp --early-stopping 3:0.01
"""

from collections.abc import Sequence


def best_epoch(losses: Sequence[float]) -> int:
    """The place of the smallest loss, counting from 1; the first of equals."""
    return min(range(len(losses)), key=losses.__getitem__) + 1


def should_stop(losses: Sequence[float], patience: int, min_delta: float) -> bool:
    """Whether the last `patience` epochs went by without progress; `losses` has one an epoch.

    Progress is a loss smaller by more than `min_delta` than the one at the last progress.
    """
    mark, waited = float("inf"), 0
    for loss in losses:
        waited = 0 if loss < mark - min_delta else waited + 1
        mark = loss if waited == 0 else mark
        if waited >= patience:
            return True
    return False
