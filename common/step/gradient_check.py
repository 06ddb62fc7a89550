"""Numbers that are not finite stop the run before they reach anyone's weights.

    with located(model, lambda: "rank 2 at epoch 1 iteration 7"):
        require_finite([p.grad for p in model.parameters()])
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from common.core.failures import NonFiniteLoss

_is_scaled = False  # while a loss scale skips the steps in which gradients overflow


class NotFinite(Exception):
    """`what` is infinite or not a number; `tensor`, if any, is a parameter or its gradient.

    `advice` says what to do about it, or why it is so.
    """

    def __init__(self, what: str, tensor: Tensor | None = None, advice: str = "") -> None:
        super().__init__(f"{what} is not finite")
        self.what, self.tensor = what, tensor
        self.advice = advice or "try a smaller --learning-rate"


def require_finite(tensors: Sequence[Tensor], what: str = "the gradient of",
                   parameters: Sequence[Tensor] | None = None) -> None:
    """Raises NotFinite for the first tensor that is not finite throughout.

    `parameters`, one a tensor, say which they belong to where `.grad` does not. One pass
    over memory, 1.3 ms for VGG-11 on two cores; only when the norm is not finite are the tensors
    looked at one by one. The norm may overflow where no tensor does: not an error. Under a loss
    scale nothing is raised: an overflow must reach all ranks, so that all skip the step.
    """
    if _is_scaled or not tensors or bool(get_total_norm(tensors).isfinite()):
        return
    for tensor, parameter in zip(tensors, parameters or tensors, strict=True):
        if not bool(tensor.isfinite().all()):
            raise NotFinite(what, parameter)


class LateCheck:
    """require_finite where gradients leave during backward: at once, but on a GPU later.

    There a look at the result would wait for all that is queued: looks are queued too, and
    `finish` reads them together. Until then a gradient that is not finite may have been sent.
    """

    def __init__(self) -> None:
        self._queued: list[tuple[Tensor, Sequence[Tensor]]] = []

    def look(self, tensors: Sequence[Tensor]) -> None:
        """Raises NotFinite now, or in `finish`."""
        if tensors and is_queued(tensors[0]):
            self._queued.append((get_total_norm(tensors).isfinite(), tensors))
        else:
            require_finite(tensors)

    def finish(self) -> None:
        """Raises NotFinite for the first tensor of those looked at that was not finite."""
        queued, self._queued = self._queued, []
        if queued and not bool(torch.stack([finite for finite, _ in queued]).all()):
            for finite, tensors in queued:
                if not bool(finite):
                    require_finite(tensors)


def is_queued(tensor: Tensor) -> bool:
    """Returns True if a GPU may still have to compute the tensor's values."""
    return tensor.is_cuda


@contextmanager
def located(model: nn.Module, where: Callable[[], str], is_scaled: bool = False) -> Iterator[None]:
    """Around training: turns NotFinite into NonFiniteLoss, naming the parameter and `where()`.

    `is_scaled` says that a loss scale deals with gradients that overflow.
    """
    global _is_scaled
    _is_scaled = is_scaled
    try:
        yield
    except NotFinite as error:
        names = [name for name, parameter in model.named_parameters()
                 if _is_of(error.tensor, parameter)]
        raise NonFiniteLoss(f"{' '.join([error.what, *names[:1]])} became infinite or not a number "
                            f"on {where()}; {error.advice}") from error
    finally:
        _is_scaled = False


def _is_of(tensor: Tensor | None, parameter: Tensor) -> bool:
    return tensor is not None and (tensor is parameter.grad
                                   or tensor.data_ptr() == parameter.data_ptr())
