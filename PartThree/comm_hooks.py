"""DDP's handling of a full bucket: torch's own communication hooks, counted and checked.

    python3 PartThree/main.py ... --wire bf16
"""

import concurrent.futures
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future

from common.core.collectives import ring_bytes, world_size
from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync
from common.step.virtual_nodes import VirtualNodes
from PartTwo.buckets import windows
from PartTwo.on_virtual_nodes import Lane
from PartTwo.pipelined import reduce_scatter_bytes

Hook = Callable[[GradientSync, GradBucket], Future[Tensor]]


def counted(hook: Callable, bytes_each: int | None = None) -> Hook:
    """A hook of torch's, counted and checked, that sends so many bytes for each number.

    None means as many as the gradients' own format has.
    """
    def send(counter: GradientSync, bucket: GradBucket) -> Future[Tensor]:
        _check(bucket)
        row = bucket.buffer()
        payload = (bytes_each or row.element_size()) * row.numel()
        counter.bytes_sent += ring_bytes(payload, world_size())
        return hook(dist.group.WORLD, bucket)
    return send


def in_tree(nodes: VirtualNodes, lane: Lane) -> Hook:
    """A hook that averages over all virtual nodes' shards, on `lane`: see PartTwo."""
    def send(counter: GradientSync, bucket: GradBucket) -> Future[Tensor]:
        parameters, buffer = bucket.parameters(), bucket.buffer()
        sums = [nodes.sums(*each) for each in zip(parameters, windows(buffer, parameters),
                                                  strict=True)]
        rows = [buffer, *(torch.empty_like(buffer) for _ in sums[0][1:])]
        # the buffer last: it holds the last shard's gradients, which may belong in another row
        for row, values in reversed(list(zip(rows, zip(*sums, strict=True), strict=True))):
            for window, value in zip(windows(row, parameters), values, strict=True):
                if window.data_ptr() != value.data_ptr():
                    window.copy_(value)
            require_finite(values, parameters=parameters)
        counter.bytes_sent += reduce_scatter_bytes(rows, world_size())
        future: Future[Tensor] = Future()
        lane.send(rows, nodes.tree).add_done_callback(lambda done: _hand_on(done, future, rows[0]))
        return future
    return send


def _hand_on(done: concurrent.futures.Future, future: Future[Tensor], mean: Tensor) -> None:
    error = done.exception()
    if error is None:
        future.set_result(mean)
    else:
        future.set_exception(error)  # type: ignore[arg-type]


# By --wire. Each raises NotFinite when this rank's own gradient is not finite.
HOOKS: dict[str, Hook] = {
    "float32": counted(default_hooks.allreduce_hook),
    "fp16": counted(default_hooks.fp16_compress_hook, 2),
    "bf16": counted(default_hooks.bf16_compress_hook, 2),
}


def _check(bucket: GradBucket) -> None:
    if not bucket.buffer().is_cuda:
        require_finite(bucket.gradients(), parameters=bucket.parameters())

