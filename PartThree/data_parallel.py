"""DataParallel: one process that spreads each batch over the GPUs of its machine, to compare with.

In every step it copies the weights to all GPUs, gathers their outputs on the first and sums their
gradients there, under one Python interpreter: DDP is the better choice on one machine too, as
torch's documentation says. With fewer than two GPUs it only calls the model.

    python3 PartThree/main.py --parallel data-parallel
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from common.model.dropout import dropout_layers


class DataParallel(nn.DataParallel):
    """torch's, that tells each GPU's dropout layers which samples of the batch are theirs.

    A model on the CPU stays there, also where there are GPUs.
    """

    def __init__(self, model: nn.Module) -> None:
        if next(model.parameters()).is_cuda:
            super().__init__(model)
            return
        nn.Module.__init__(self)
        self.module, self.device_ids = model, []

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Nothing to register: no gradient goes over a wire."""

    def no_sync(self) -> AbstractContextManager:
        """Nothing to hold back."""
        return nullcontext()

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any],
                       kwargs: Any) -> list[Any]:
        """Runs each replica on its part of the batch."""
        deal_samples(replicas, [len(part[0]) for part in inputs])
        return super().parallel_apply(replicas, inputs, kwargs)


def deal_samples(replicas: Sequence[nn.Module], sizes: Sequence[int]) -> None:
    """Cuts the samples of each replica's dropout layers, which know the whole batch, to its own.

    Replica k has the `sizes[k]` rows after those of the replicas before it.
    """
    start = 0
    for replica, size in zip(replicas, sizes, strict=True):
        for layer in dropout_layers(replica):
            layer.indices = layer.indices[start:start + size]
        start += size
