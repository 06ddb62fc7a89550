"""What DistributedDataParallel needs from us: rules for buffers and buckets, and its seam."""

import inspect
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.settings import Settings
from common.step.gradient_sync import GradientSync
from PartThree.comm_hooks import register_comm_hook
from PartThree.data_parallel import DataParallel

# Every rank keeps its own running statistics while training; see share_leaders_buffers. torch 2.15
# gave the flag another name.
_FLAGS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _FLAGS else "broadcast_buffers": False}


def buckets(megabytes: float) -> dict[str, Any]:
    """DDP's flags for gradients that live in buckets of about `megabytes` and leave early.

    DDP's own default of 25 MB holds VGG-11's large gradients back until most of backward is over.
    """
    return {"bucket_cap_mb": megabytes, "gradient_as_bucket_view": True}


def replicate(settings: Settings, model: nn.Module) -> nn.Module:
    """The model in what --parallel names. Every rank must call it."""
    if settings.parallel == "data-parallel":
        return DataParallel(model)
    return nn.parallel.DistributedDataParallel(
        model, **OWN_BUFFERS, **buckets(settings.bucket_mb))


class AveragedInBackward(GradientSync):
    """The seam where `replica` has averaged the gradients during backward: nothing is left to do.

    `hook` is a name in comm_hooks.HOOKS; the hook counts the bytes and checks what it sends.
    `example` are two samples or more, for rebuild_buckets.
    """

    def __init__(self, replica: nn.Module, hook: str, example: Tensor | None = None) -> None:
        self._replica, self._hook, self._example = replica, hook, example

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Registers the hook, and rebuilds the buckets. Every rank must call it."""
        register_comm_hook(self._replica, self._hook, self)
        if self._example is not None:
            rebuild_buckets(self._replica, self._example)

    def no_sync(self) -> AbstractContextManager:
        """DDP's own."""
        return self._replica.no_sync()  # type: ignore[operator]


def rebuild_buckets(replica: nn.Module, example: Tensor) -> None:
    """Lets DDP rearrange its buckets now, so that every start of a run sums in the same order.

    DDP rebuilds its buckets after the first backward pass, by the order in which gradients came. So
    the first step after any start sums in another order than the same step in mid-run, and with
    three or more ranks a resumed run would drift off by a rounding. Two passes on `example`, a
    batch of any values, are forgotten but for the buckets. Every rank must call it.
    """
    buffers = [buffer.clone() for buffer in replica.buffers()]
    for _ in range(2):
        replica(example).sum().backward()
    replica.zero_grad()
    for buffer, before in zip(replica.buffers(), buffers, strict=True):
        buffer.copy_(before)
