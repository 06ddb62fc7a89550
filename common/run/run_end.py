"""When a run ends: by its settings, or when the validation loss no longer improves.

The history is in the checkpoint, so a resumed run stops where the uninterrupted one would.

    python3 PartOne/main.py --workload spiral-mlp --validation 0.15:3:0.01
"""

from collections.abc import Sequence

from common.core.progress import Position
from common.settings.causes import join
from common.settings.settings import Settings


def best_epoch(losses: Sequence[float]) -> int:
    """The place of the smallest loss, counting from 1; the first of equals."""
    return min(range(len(losses)), key=losses.__getitem__) + 1


def best_in_words(epoch: int, losses: Sequence[float]) -> str:
    """A remark on the best epoch; `losses` has one an epoch, the last that of `epoch`."""
    return (f"the best was epoch {epoch - len(losses) + best_epoch(losses)} with a validation loss "
            f"of {min(losses):.3f}")


def should_stop(losses: Sequence[float], patience: int, min_delta: float) -> bool:
    """Returns True if the last `patience` epochs brought no progress; `losses` has one an epoch.

    Progress is a loss smaller by more than `min_delta` than the one at the last progress. A
    patience of 0 never ends.
    """
    mark, waited = float("inf"), 0
    for loss in losses:
        waited = 0 if loss < mark - min_delta else waited + 1
        mark = loss if waited == 0 else mark
        if 0 < patience <= waited:
            return True
    return False


def is_over(settings: Settings, position: Position, losses: Sequence[float]) -> bool:
    """Returns True if training is over at `position`, with these validation losses so far."""
    limit, rule = 1 if settings.dry_run else settings.max_iterations, settings.validation
    return (position.epoch > settings.epochs or should_stop(losses, rule.patience, rule.gain)
            or (limit is not None and position.step >= limit))


def limits(settings: Settings) -> str:
    """The flags that end a run, in words: "--epochs 2 and --max-iterations 16"."""
    limit, rule = settings.max_iterations, settings.validation
    return join([f"--epochs {settings.epochs}", *[f"--max-iterations {limit}"] * bool(limit),
                 *[f"--validation {rule}"] * bool(rule.patience),
                 *["--dry-run"] * settings.dry_run])


def last_step(settings: Settings, iterations_per_epoch: int) -> int:
    """The number of steps that a run takes which does not stop early."""
    whole = settings.epochs * iterations_per_epoch
    return min(whole, settings.max_iterations or whole)
