"""Gradients that travel together: buckets, filled as backward goes; see overlapped.py."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Parameter

from common.core.collectives import total_bytes


class Bucket:
    """Gradients that travel together, laid end to end in one buffer in which they then live.

    Each parameter has a window of its own shape and strides into the buffer. A parameter that is
    alone needs neither: its gradient travels from where backward left it, without a copy. Of
    virtual nodes a rank may have several sums to send: then there are as many `rows`.
    """

    def __init__(self, parameters: Sequence[Parameter], rows: int = 1) -> None:
        self.parameters = list(parameters)
        self.size = sum(parameter.numel() for parameter in parameters)
        self.missing = set(parameters)
        self._aside: list[Tensor | None] = []
        self._buffers: list[Tensor] = []
        if len(parameters) > 1:
            self._buffers = [parameters[0].detach().new_zeros(self.size) for _ in range(rows)]
        self._windows = [dict(zip(parameters, windows(each, parameters), strict=True))
                         for each in self._buffers]
        self._more: Sequence[Tensor] = ()

    @property
    def is_full(self) -> bool:
        return not self.missing

    @property
    def rows(self) -> list[Tensor]:
        """The rows that a full bucket sends, (size,) each, not copied; the first has gradients."""
        if self._buffers:
            return self._buffers
        gradient = self.parameters[0].grad
        assert gradient is not None
        return [each.as_strided((self.size,), (1,)) for each in (gradient, *self._more)]

    def take(self, parameter: Parameter, values: Sequence[Tensor]) -> None:
        """Moves a parameter's values, one a row, to its windows if it has any.

        The first becomes its gradient.
        """
        if self._windows:
            values = [windows[parameter].copy_(value)
                      for windows, value in zip(self._windows, values, strict=True)]
        parameter.grad, *self._more = values
        self.missing.discard(parameter)

    def empty(self) -> None:
        """Awaits the next step's gradients."""
        self.missing = set(self.parameters)
        self._more = ()

    def set_aside(self) -> None:
        """Takes the gradients from their parameters, and keeps them."""
        self._aside = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def bring_back(self) -> None:
        """Gives the parameters the gradients that were set aside."""
        for parameter, gradient in zip(self.parameters, self._aside, strict=True):
            parameter.grad = gradient
        self._aside.clear()


def windows(buffer: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Views of the buffer, (size,), of the parameters' shapes and strides, one after the other."""
    pieces = buffer.split([parameter.numel() for parameter in parameters])
    return [piece.as_strided(parameter.shape, parameter.stride(), piece.storage_offset())
            for piece, parameter in zip(pieces, parameters, strict=True)]


def fill_buckets(parameters: Sequence[Parameter], bucket_bytes: int,
                 rows: int = 1) -> list[Bucket]:
    """Packs parameters, in order, into buckets that close as soon as they reach `bucket_bytes`.

    A parameter larger than that travels alone, at once; parameters of another dtype in other
    buckets. `rows` is each bucket's.
    """
    buckets: list[Bucket] = []
    waiting: list[Parameter] = []
    for parameter in parameters:
        if waiting and waiting[0].dtype != parameter.dtype:
            buckets.append(Bucket(waiting, rows))
            waiting = []
        waiting.append(parameter)
        if total_bytes(waiting) >= bucket_bytes:
            buckets.append(Bucket(waiting, rows))
            waiting = []
    return buckets + ([Bucket(waiting, rows)] if waiting else [])
