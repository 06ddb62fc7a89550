"""The seam between loss.backward() and optimizer.step(): what every synchroniser promises.

The strategies that average by hand are the lesson of Part Two and live in PartTwo/synchronizers.py.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class GradientSync(Protocol):
    """Replaces each gradient by its mean over all ranks. Every rank must call every method."""

    checks_gradients: bool
    """True if it looks for spoilt gradients itself, because it sends while backward goes on."""

    waiting: Callable[[], AbstractContextManager]
    """What it enters while it keeps forward waiting for other ranks. The loop's, to time it."""

    @property
    def replicas_agree(self) -> bool:
        """Whether the last step, once settled, has made all ranks wait, and their weights equal."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has put on the wire so far."""
        ...

    def prepare(self, model: nn.Module) -> None:
        """Called once, after the model has its initial weights; may register hooks or buffers."""

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks.

        Every rank passes the same number of tensors, of the same shapes and dtypes, in the same
        order; a rank that does not call it leaves the others waiting.
        """

    def update(self, optimizer: Optimizer) -> None:
        """Has the optimiser take its step: at once, or as the averaged gradients arrive.

        Called after `average`, when the rates of this step have been set.
        """

    def settle(self) -> None:
        """Returns when all weights are those after the last step.

        Called before anyone but forward looks at them. A rank may call it alone.
        """

    def no_sync(self) -> AbstractContextManager:
        """Around a backward pass whose gradients are a part of the step's: nothing leaves yet."""
        ...

    def meet(self, iteration: int, iterations: int, is_last: bool) -> None:
        """Called after each step, `iteration` (from 0) of an epoch of `iterations`.

        A strategy that lets the ranks' weights differ makes them equal, in place, when it is time:
        always at the end of an epoch, and when the step `is_last` of the run.
        """

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """Tensors of this rank alone that the next step depends on, for checkpoints.

        `optimizer` is the run's: its state, and its parameters, may be among them. They are saved
        for every rank, and restored in place. Always as many, of the same shapes.
        """
        ...


class KeepLocal:
    """Leaves the gradients alone: for one rank, and where someone else (DDP) has averaged them."""

    checks_gradients = False
    replicas_agree = True

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.waiting: Callable[[], AbstractContextManager] = nullcontext

    def prepare(self, model: nn.Module) -> None:
        """Nothing to prepare."""

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Nothing to do."""

    def update(self, optimizer: Optimizer) -> None:
        """Has the optimiser take its step."""
        optimizer.step()

    def settle(self) -> None:
        """Most strategies leave nothing unfinished."""

    def no_sync(self) -> AbstractContextManager:
        """Most strategies send nothing during backward."""
        return nullcontext()

    def meet(self, iteration: int, iterations: int, is_last: bool) -> None:
        """Most strategies give all ranks equal gradients, and so equal weights."""

    def local_state(self, optimizer: Optimizer) -> list[Tensor]:
        """Most strategies remember nothing."""
        return []


def as_row(gradient: Tensor) -> Tensor:
    """The gradient as one row, a view where possible; in an order that all ranks share.

    Element order must not depend on a rank's memory format.
    """
    return gradient.reshape(-1)


def put_back(row: Tensor, gradient: Tensor) -> None:
    """Copies a row of `as_row`'s order into the gradient, unless it is a view of it."""
    if row.data_ptr() != gradient.data_ptr():
        gradient.copy_(row.view_as(gradient))
