"""Times at which backward has each gradient ready: the room for overlapping.

    ready = ReadyTimes(model)
    loss.backward(); seconds = ready.take()
"""

import time

from torch import Tensor, nn


class ReadyTimes:
    """Seconds from the beginning of backward to each parameter's gradient; hooks into `model`."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._at: dict[Tensor, float] = {}
        self._begun = 0.0
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._note)
        model.register_full_backward_pre_hook(lambda *_: self._begin())

    def _begin(self) -> None:
        self._begun = time.perf_counter()

    def take(self) -> list[float]:
        """Seconds by parameter, in the order of `model.parameters()`; 0 for one without any."""
        taken = [self._at.get(parameter, self._begun) - self._begun
                 for parameter in self._parameters]
        self._at.clear()
        return taken

    def _note(self, parameter: Tensor) -> None:
        self._at[parameter] = time.perf_counter()
