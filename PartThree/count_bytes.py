"""Watches DistributedDataParallel send: the same all-reduce as its own, and a count of the bytes."""

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from common.collectives import world_size
from common.gradient_sync import KeepLocal, ring_bytes, total_bytes


def counted_all_reduce(counter: KeepLocal, bucket: GradBucket) -> Future[Tensor]:
    """A DDP communication hook: averages one bucket of gradients and counts its bytes."""
    counter.bytes_sent += ring_bytes(total_bytes([bucket.buffer()]), world_size())
    return allreduce_hook(torch.distributed.group.WORLD, bucket)
