"""The seam between loss.backward() and optimizer.step(): what every strategy promises.

The strategies that average by hand are the lesson of Part Two and live in PartTwo/. A new one is a
subclass with its own `average`, a row in PartTwo/strategies.py, and its name in
common/settings/strategies.py.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.optim import Optimizer

from common.step.gradient_check import require_finite


class GradientSync:
    """Replaces each gradient by its mean over all ranks; this one is for one rank.

    Every rank must call every method. A gradient is checked before it is sent: the mean would not
    show which rank's was not finite.
    """

    replicas_agree = True
    """True if all ranks have equal weights after `settle` has followed the last step."""

    waiting: Callable[[], AbstractContextManager] = nullcontext
    """A context to wait for other ranks in, outside of `average`. Set by the loop, to time it."""

    bytes_sent = 0
    """Bytes that this rank has put on the wire so far."""

    _parameters: Sequence[Tensor] = ()
    """All that `model` has, in its order, for shared_gradients.py; none before `prepare`."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Called once, when `model` has its initial weights; may register hooks on both."""
        self._parameters = list(model.parameters())

    def no_sync(self) -> AbstractContextManager:
        """Around a backward pass whose gradients are only a part of the step's: sends nothing."""
        return nullcontext()

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks.

        Every rank passes the gradients that it has, in the model's order; they need not be those
        that other ranks have, and `completed` in shared_gradients.py makes them so. A rank that
        does not call it leaves the other ranks waiting. Raises NotFinite, before anything is sent.
        A strategy that updates later takes the gradients from their parameters, so that
        optimizer.step() finds nothing to do.
        """
        require_finite(gradients)

    def settle(self) -> None:
        """Returns when all weights are those after the last step, equal on all ranks.

        Called before anyone but forward looks at the weights: at the end of an epoch and of the
        run, and in between only after steps at whose end the replicas agree.
        """

    def state(self) -> list[Tensor]:
        """Tensors of this rank alone that the next step depends on, for checkpoints.

        They are saved for every rank, and restored in place. Always as many, of the same shapes.
        """
        return []
