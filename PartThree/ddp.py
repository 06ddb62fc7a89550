"""What DistributedDataParallel needs from us: rules for buffers and buckets."""

import inspect
from typing import Any

from torch import Tensor, nn

# Every rank keeps its own running statistics while training; see share_leaders_buffers. torch 2.15
# gave the flag another name.
_FLAGS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _FLAGS else "broadcast_buffers": False}


def settle_buckets(replica: nn.parallel.DistributedDataParallel, example: Tensor) -> None:
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


def buckets(megabytes: float) -> dict[str, Any]:
    """DDP's flags for gradients that live in buckets of about `megabytes` and leave early.

    DDP's own default of 25 MB holds VGG-11's large gradients back until most of backward is over.
    """
    return {"bucket_cap_mb": megabytes, "gradient_as_bucket_view": True}
