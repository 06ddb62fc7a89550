"""DDP's handling of a full bucket: torch's own communication hooks, counted and checked.

    python3 PartThree/main.py ... --wire bf16
"""

import concurrent.futures
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from common.core.collectives import ring_bytes, world_size
from common.step.gradient_check import require_finite
from common.step.gradient_sync import GradientSync
from common.step.virtual_nodes import VirtualNodes
from PartTwo.buckets import windows
from PartTwo.on_virtual_nodes import Lane
from PartTwo.pipelined import reduce_scatter_bytes

# Rank 4 sends a fiftieth of VGG-11's gradient. The first ten steps are exact: the largest gradients
# are those of the beginning, and rebuild_buckets takes two more.
POWER_RANK = 4
POWER_START = 12

Hook = Callable[[GradientSync, GradBucket], Future[Tensor]]


def counted(hook: Callable, bytes_each: int | None = None) -> Hook:
    """A hook of torch's, counted and checked, that sends so many bytes for each number.

    None means as many as the gradients' own format has.
    """
    def send(counter: GradientSync, bucket: GradBucket) -> Future[Tensor]:
        _check(bucket)
        row = bucket.buffer()
        _count(counter, (bytes_each or row.element_size()) * row.numel())
        return hook(_group(), bucket)
    return send


def low_rank() -> Hook:
    """PowerSGD (Vogels et al., 2019, arXiv:1905.13727) with error feedback and warm start.

    What it remembers is not in checkpoints: a resumed run begins with ten exact steps anew.
    """
    state = PowerSGDState(_group(), POWER_RANK, POWER_START)

    def send(counter: GradientSync, bucket: GradBucket) -> Future[Tensor]:
        _check(bucket)
        before, is_exact = state.total_numel_after_compression, state.iter < POWER_START
        future = powerSGD_hook(state, _Matrices(bucket))  # type: ignore[arg-type]
        # It sends again when a first message has arrived. Of two buckets under way that could be
        # in another order on another rank, and gloo matches messages by order: one at a time.
        future.wait()
        sent = (bucket.buffer().numel() if is_exact
                else state.total_numel_after_compression - before)
        _count(counter, sent * bucket.buffer().element_size())
        return future
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


HOOKS: dict[str, Callable[[], Hook]] = {
    "float32": lambda: counted(default_hooks.allreduce_hook),
    "fp16": lambda: counted(default_hooks.fp16_compress_hook, 2),
    "bf16": lambda: counted(default_hooks.bf16_compress_hook, 2),
    "powersgd": low_rank,
}


def register_comm_hook(replica: nn.Module, name: str, counter: GradientSync) -> None:
    """Has `replica` average with the hook `name`, and `counter` count the bytes.

    The hook raises NotFinite when this rank's own gradient is not finite. Call before the first
    backward pass, on every rank.
    """
    replica.register_comm_hook(counter, HOOKS[name]())  # type: ignore[operator]


class _Matrices:
    """A bucket as PowerSGD wants it: each gradient a matrix, whatever its memory format.

    A channels-last gradient cannot be viewed as rows in the order of its dimensions, but in that of
    its memory, and for a factorisation one order of columns is as good as another.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self.buffer, self.index, self.is_last = bucket.buffer, bucket.index, bucket.is_last
        self._shapes = [gradient.shape for gradient in bucket.gradients()]

    def gradients(self) -> list[Tensor]:
        rows = self.buffer().split([shape.numel() for shape in self._shapes])
        return [row.view(shape[0], -1) if len(shape) > 1 else row
                for row, shape in zip(rows, self._shapes, strict=True)]


def _check(bucket: GradBucket) -> None:
    if not bucket.buffer().is_cuda:
        require_finite(bucket.gradients(), parameters=bucket.parameters())


def _count(counter: GradientSync, payload: int) -> None:
    counter.bytes_sent += ring_bytes(payload, world_size())


def _group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD
