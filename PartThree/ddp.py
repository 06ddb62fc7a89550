"""What we tell DistributedDataParallel: leave the buffers to us, and let us count the bytes."""

import inspect
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from common.collectives import world_size
from common.gradient_sync import KeepLocal, ring_bytes, total_bytes

# Every rank keeps its own running statistics while training; see share_leaders_buffers. torch 2.15
# gave the flag another name.
_FLAGS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _FLAGS else "broadcast_buffers": False}


def counted_all_reduce(counter: KeepLocal, bucket: GradBucket) -> Future[Tensor]:
    """A DDP communication hook: averages one bucket of gradients and counts its bytes."""
    counter.bytes_sent += ring_bytes(total_bytes([bucket.buffer()]), world_size())
    assert dist.group.WORLD is not None
    return allreduce_hook(dist.group.WORLD, bucket)
