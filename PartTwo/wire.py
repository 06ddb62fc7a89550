"""Half the bytes: gradients travel as bf16 or fp16, and what rounding takes is made up for later.

    python3 PartTwo/main.py ... --sync overlapped-all-reduce --wire bf16
"""

from collections.abc import Sequence

import torch
from torch import Tensor

FORMATS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Wire:
    """Rounds tensors to `format` ("float32" leaves them as they are) before they are sent.

    Error feedback (Seide et al., 2014; Karimireddy et al., 2019, arXiv:1901.09847): what rounding
    took from a tensor is added to the same tensor of the next step, so that over the steps nothing
    is lost.
    """

    def __init__(self, format: str = "float32") -> None:
        self._format = FORMATS[format]
        self._errors: list[Tensor] = []

    def expect(self, sizes: Sequence[int], like: Tensor) -> None:
        """Call once: tensors of these many elements, of `like`'s dtype and device, will be sent."""
        if self._format is not None:
            self._errors = [like.new_zeros(size) for size in sizes]

    def errors(self) -> list[Tensor]:
        """What rounding has taken so far and not given back: one tensor for each expected one."""
        return self._errors

    def pack(self, number: int, row: Tensor) -> Tensor:
        """What to send for the expected tensor `number`: itself, or a rounded copy."""
        if self._format is None:
            return row
        wanted = self._errors[number].add_(row)
        rounded = wanted.to(self._format)
        wanted.sub_(rounded)
        return rounded

    def unpack(self, received: Tensor, row: Tensor) -> None:
        """Puts what became of a packed row on the way back into it, in place."""
        if received is not row:
            row.copy_(received)
