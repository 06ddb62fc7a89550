"""What DistributedDataParallel needs from us: rules for buffers and buckets, and a byte count."""

import inspect
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from common.collectives import world_size
from common.gradient_check import require_finite
from common.gradient_sync import KeepLocal, ring_bytes, total_bytes

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


def counted_all_reduce(counter: KeepLocal, bucket: GradBucket) -> Future[Tensor]:
    """A DDP communication hook: averages one bucket of gradients and counts its bytes.

    Raises SpoiltGradient when this rank's own gradient is bad: in the mean nobody could tell whose.
    """
    if not bucket.buffer().is_cuda:
        require_finite(bucket.parameters(), bucket.gradients())
    counter.bytes_sent += ring_bytes(total_bytes([bucket.buffer()]), world_size())
    assert dist.group.WORLD is not None
    return allreduce_hook(dist.group.WORLD, bucket)
