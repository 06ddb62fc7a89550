"""What a rank under test tells the grader; all are pickled."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Arrays = list[np.ndarray]


class Order(NamedTuple):
    """What a rank is to do next, at `start` on the machine's monotonic clock.

    It is the step of a scenario, by their numbers; with `is_settling` the step is over on every
    rank, and the rank looks at its gradients again.
    """

    scenario: int
    step: int
    start: float = 0.0
    is_settling: bool = False


class Ready(NamedTuple):
    """The strategy could be made. `tolerance` is what it declares, 0 for exact."""

    tolerance: float


class Seen(NamedTuple):
    """One rank after `average`; gradients by parameter, None where there is none.

    `returned` says what `average` has returned, "" for nothing; `replaced` whether it has put
    other tensors into the list. Weights are those before `average`, after it, and after the
    optimizer's step.
    """

    gradients: list[np.ndarray | None]
    returned: str
    replaced: bool
    weights: tuple[Arrays, Arrays, Arrays]
    buffers_changed: bool
    seconds: float


class Settled(NamedTuple):
    """The same step, when it is over on every rank.

    `late` are the parameters whose gradients have changed since, `sent` the bytes that have left
    through this process's TCP sockets, `our_seconds` what our all-reduce has needed for the same.
    """

    late: Sequence[int]
    sent: int
    our_seconds: float


class Raised(NamedTuple):
    """An exception has ended the rank, `when` on the machine's monotonic clock.

    `kind` is the diagnosis; `trace` is cut to the user's own lines; `is_broken` says that a
    connection broke.
    """

    sentence: str
    trace: str
    is_broken: bool
    when: float
    kind: str = "raises"


Message = Ready | Seen | Settled | Raised
