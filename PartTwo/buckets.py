"""Gradients that travel together: buckets, filled as backward goes; see overlapped.py."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from common.core.collectives import total_bytes


class Bucket:
    """Gradients that travel together, laid end to end in one buffer in which they then live.

    Each parameter has a window of its own shape and strides into the buffer. A parameter that is
    alone needs neither: its gradient travels from where backward left it, without a copy.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self.size = sum(parameter.numel() for parameter in parameters)
        self._missing = set(parameters)
        self._aside: list[Tensor | None] = []
        self._windows: dict[Parameter, Tensor] = {}
        if len(parameters) > 1:
            self._row = parameters[0].detach().new_zeros(self.size)
            self._windows = dict(zip(parameters, _windows(self._row, parameters), strict=True))

    @property
    def is_full(self) -> bool:
        return not self._missing

    @property
    def row(self) -> Tensor:
        """All gradients of a full bucket, as they lie in memory: (size,)."""
        if self._windows:
            return self._row
        gradient = self.parameters[0].grad
        assert gradient is not None
        return gradient.as_strided((self.size,), (1,))

    def take(self, parameter: Parameter, parts: int) -> None:
        """Divides the parameter's gradient by `parts`, and moves it to its window if it has one."""
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = torch.div(gradient, parts, out=self._windows.get(parameter, gradient))
        self._missing.discard(parameter)

    def fill(self) -> None:
        """Takes zeros for gradients that backward did not compute here: other ranks may have."""
        for parameter in self._missing:
            window = self._windows.get(parameter)
            parameter.grad = torch.zeros_like(parameter) if window is None else window.zero_()
        self._missing.clear()

    def empty(self) -> None:
        """Awaits the next step's gradients."""
        self._missing = set(self.parameters)

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


def _windows(buffer: Tensor, parameters: Sequence[Parameter]) -> list[Tensor]:
    pieces = buffer.split([parameter.numel() for parameter in parameters])
    return [piece.as_strided(parameter.shape, parameter.stride(), piece.storage_offset())
            for piece, parameter in zip(pieces, parameters, strict=True)]


def fill_buckets(parameters: Sequence[Parameter], bucket_bytes: int) -> list[Bucket]:
    """Packs parameters, in order, into buckets that close as soon as they reach `bucket_bytes`.

    A parameter larger than that travels alone, at once.
    """
    buckets: list[Bucket] = []
    waiting: list[Parameter] = []
    for parameter in parameters:
        waiting.append(parameter)
        if total_bytes(waiting) >= bucket_bytes:
            buckets.append(Bucket(waiting))
            waiting = []
    return buckets + ([Bucket(waiting)] if waiting else [])
