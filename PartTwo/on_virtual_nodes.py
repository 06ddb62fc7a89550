"""The strategies on virtual nodes: the same messages, and sums in an order that no rank decides.

    python3 PartTwo/main.py ... --virtual-nodes 4 --sync all-reduce,overlapped-all-reduce

gloo's own ring cannot do it: it adds each slice in the order of the ring, which begins at another
rank for each slice and has as many summands as ranks. So here all-reduce is carried out as
reduce-scatter and all-gather, whose slices each have one root that adds in the tree's order; on 2,
4, 8 … ranks with the same bytes. As in a ring it is done piece by piece, and one piece's means
travel while the next is added.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from common.cluster.elastic import in_background, unless_broken
from common.cluster.process_group import new_group
from common.core.collectives import LEADER, total_bytes, world_size
from common.step.gradient_check import require_finite
from common.step.shared_gradients import Used
from common.step.virtual_nodes import ShardTree, VirtualNodes
from PartTwo.buckets import Bucket
from PartTwo.cross_step import CrossStepAllReduce
from PartTwo.lanes import PIECE_BYTES
from PartTwo.overlapped import InFlight, OverlappedAllReduce
from PartTwo.pipelined import (
    TreeMean,
    receive_from,
    reduce_scatter_all_gather,
    reduce_scatter_bytes,
    wait,
)
from PartTwo.sync_options import SyncOptions

IN_FLIGHT = 2


def gather_scatter(rows: Sequence[Tensor], tree: ShardTree) -> int:
    """Task one, of as many rows a rank as it has subtrees: a TreeMean."""
    if dist.get_rank() != LEADER:
        for row in rows:
            dist.send(row, LEADER)
        dist.scatter(rows[0], src=LEADER)
        return total_bytes(rows)
    senders = [rank for rank in range(1, tree.ranks) for _ in tree.subtrees(rank)]
    arriving = receive_from(senders, rows[0])
    wait([work for work, _ in arriving])
    mean = tree.mean([*rows, *(row for _, row in arriving)])
    dist.scatter(mean, [mean] * tree.ranks, src=LEADER)
    return (tree.ranks - 1) * total_bytes([mean])


class FlatVirtual(VirtualNodes):
    """Lays all sums of a subtree end to end in one row, and averages the rows by `mean`."""

    def __init__(self, mean: TreeMean, options: SyncOptions) -> None:
        assert options.virtual_nodes is not None
        super().__init__(options.virtual_nodes, dist.get_rank(), world_size())
        self._mean = mean

    def _average_sums(self, by_subtree: Sequence[Sequence[Tensor]]) -> None:
        for dtype in sorted({each.dtype for each in by_subtree[0]}, key=str):
            self._average_row([[each for each in sums if each.dtype == dtype]
                               for sums in by_subtree])

    def _average_row(self, by_subtree: Sequence[Sequence[Tensor]]) -> None:
        """Leaves the means in the first subtree's sums, which have one dtype: no other rounds."""
        rows = [torch.cat([each.flatten() for each in sums]) for sums in by_subtree]
        self.bytes_sent += in_background(self._mean, rows, self.tree)
        means = rows[0].split([each.numel() for each in by_subtree[0]])
        for place, mean in zip(by_subtree[0], means, strict=True):
            place.copy_(mean.view_as(place))


class Lane:
    """Averages rows in the background, in pieces: while one is added, others travel.

    Each of its `threads` has a process group of its own: collectives match by order, and so no
    other thread's can come between. Every rank must open its lanes, and send on them, in the same
    order.
    """

    def __init__(self, timeout: timedelta, threads: int = IN_FLIGHT) -> None:
        self._groups: list[Any] = [new_group(timeout) for _ in range(threads)]
        self._threads = [ThreadPoolExecutor(1, "lane") for _ in range(threads)]
        self._end = ThreadPoolExecutor(1, "end of the lane")
        self._sent = 0

    def send(self, rows: Sequence[Tensor], tree: ShardTree) -> Future[int]:
        """Begins to replace the first of `rows` by the mean over all shards.

        Returns the bytes that this rank sends, when all is done.
        """
        length = PIECE_BYTES // rows[0].element_size() // tree.ranks * tree.ranks
        pieces = zip(*(row.split(length) for row in rows), strict=True)
        return self._end.submit(_all_done, [self._send(piece, tree) for piece in pieces])

    def _send(self, piece: Sequence[Tensor], tree: ShardTree) -> Future[int]:
        turn = self._sent % len(self._threads)
        self._sent += 1
        return self._threads[turn].submit(reduce_scatter_all_gather, piece, tree,
                                          self._groups[turn])

    def average(self, rows: Sequence[Tensor], tree: ShardTree) -> int:
        """A TreeMean: sends, and waits."""
        return self.send(rows, tree).result()


def _all_done(pieces: Sequence[Future[int]]) -> int:
    return sum(unless_broken(piece) for piece in pieces)


class OverlappedVirtual(OverlappedAllReduce):
    """Sends each bucket as soon as the backward pass of this rank's last shard has filled it."""

    def __init__(self, options: SyncOptions) -> None:
        super().__init__(options)
        assert options.virtual_nodes is not None
        self._nodes = VirtualNodes(options.virtual_nodes, dist.get_rank(), world_size())
        self._rows = len(self._nodes.tree.subtrees(dist.get_rank()))

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().prepare(model, optimizer)
        self._nodes.prepare(model, optimizer)

    def _open_lanes(self) -> list[Any]:
        return [self._open_lane()] * len(self._buckets)

    def _open_lane(self) -> Lane:
        return Lane(self._timeout)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with super().no_sync(), self._nodes.no_sync():
            yield

    def _to_send(self, parameter: Parameter) -> list[Tensor]:
        return self._nodes.sums(parameter, parameter.grad)

    def _used_anywhere(self, here: Sequence[bool]) -> Used:
        return self._nodes.used_anywhere()

    def _start(self, number: int, bucket: Bucket) -> InFlight:
        rows = bucket.rows
        require_finite(rows[1:], "a gradient")
        self.bytes_sent += reduce_scatter_bytes(rows, world_size())
        return InFlight(self._lanes[number].send(rows, self._nodes.tree), rows[0])

    def _receive(self, bucket: Bucket, sent: InFlight) -> None:
        sent.work.result()


class CrossStepVirtual(CrossStepAllReduce, OverlappedVirtual):
    """Its means arrive behind the next forward, as CrossStepAllReduce's do."""


def flat_all_reduce(options: SyncOptions) -> FlatVirtual:
    """Task two, by pieces. Every rank must call it."""
    return FlatVirtual(Lane(options.timeout).average, options)
