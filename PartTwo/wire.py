"""Half the bytes: gradients travel as bf16 or fp16, with error feedback.

    python3 PartTwo/main.py ... --sync overlapped-all-reduce --wire bf16
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from common.core.failures import UsageError
from common.step.gradient_check import is_queued, require_finite

FORMATS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Wire:
    """Rounds tensors to `format` ("float32" leaves them as they are) before they are sent.

    Error feedback (Seide et al., 2014; Karimireddy et al., 2019, arXiv:1901.09847): the residual
    of a tensor's rounding is added to the same tensor of the next step, so that over the steps
    nothing is lost.
    """

    def __init__(self, format: str) -> None:
        self._format = FORMATS[format]
        self._residuals: list[Tensor] = []

    @property
    def rounds(self) -> bool:
        """True if numbers are rounded before they are sent."""
        return self._format is not None

    def expect(self, rows: Sequence[Tensor]) -> None:
        """Call once: tensors of these sizes, dtypes and devices will be sent."""
        if self.rounds:
            self._residuals = [torch.zeros_like(row) for row in rows]

    def residuals(self) -> list[Tensor]:
        """The residual of each expected tensor; none where nothing is rounded."""
        return self._residuals

    def pack(self, number: int, row: Tensor) -> Tensor:
        """Returns the row to send for the expected tensor `number`: itself, or a rounded copy.

        Raises NotFinite where that overflows; on a GPU, which would have to be waited for,
        `unpack` does. Raises UsageError for a row of another size than is expected, which is that
        of all parameters that were trained when training began.
        """
        if self._format is None:
            return row
        wanted = self._residuals[number]
        if len(wanted) != len(row):
            raise UsageError(f"a rounded --wire averages the gradients of {len(wanted)} numbers, "
                             f"and there are {len(row)} now: a parameter must require a gradient "
                             "from the start, or take --wire float32")
        rounded = wanted.add_(row).to(self._format, copy=True)
        wanted.sub_(rounded)
        if not is_queued(wanted):
            self._require_in_range(wanted)
        return rounded

    def unpack(self, received: Tensor, row: Tensor) -> None:
        """Copies the received form of a packed row back into it, in place.

        Raises NotFinite where the sum over ranks overflowed.
        """
        if received is not row:
            row.copy_(received)
            self._require_in_range(row)

    def _require_in_range(self, row: Tensor) -> None:
        """Looks at fp16 alone: bf16 has the range of float32."""
        if self._format is torch.float16:
            require_finite([row], "a number of --wire fp16, which unlike bf16 ends at 65504,")
