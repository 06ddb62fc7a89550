"""Gather/scatter and all-reduce taken apart into messages, so that no rank waits longer than
the links require.

    python3 PartTwo/main.py ... --sync gather-scatter-pipelined,reduce-scatter

Both add in the order of one tree (common/step/virtual_nodes.py), and so give the same mean, bit for
bit.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from common.core.collectives import LEADER, total_bytes, world_size
from common.step.virtual_nodes import ShardTree
from PartTwo.by_hand import RowMean
from PartTwo.lanes import CHUNK_BYTES

AHEAD = 8  # chunks that the root is ready to receive while it averages one

TreeMean = Callable[[Sequence[Tensor], ShardTree], int]
"""Replaces the first of this rank's rows, in place, by the mean over all shards; returns the bytes
that this rank sent. A rank has a row (n,), contiguous, for each of its subtrees. Every rank must
call it."""


def by_ranks(mean: TreeMean) -> RowMean:
    """The mean over ranks, of a row each."""
    return lambda row: mean([row], ShardTree(world_size(), world_size()))


def pipelined_gather_scatter(rows: Sequence[Tensor], tree: ShardTree) -> int:
    """Task one at its own bound: the root averages and returns one chunk while the next arrives.

    Links carry both ways at once, so the root's link needs (N-1) rows' time and not twice that.
    """
    chunks = list(zip(*(row.split(max(1, CHUNK_BYTES // row.element_size())) for row in rows),
                      strict=True))
    if dist.get_rank() == LEADER:
        _average_all(chunks, tree)
        return (world_size() - 1) * total_bytes(rows[:1])
    _send_and_receive(chunks)
    return total_bytes(rows)


def _average_all(chunks: Sequence[Sequence[Tensor]], tree: ShardTree) -> None:
    others = [rank for rank in range(world_size()) if rank != LEADER]
    senders = [rank for rank in others for _ in tree.subtrees(rank)]
    arriving = [receive_from(senders, chunk[0]) for chunk in chunks[:AHEAD]]
    leaving: list[dist.Work] = []
    for number, chunk in enumerate(chunks):
        for work, _ in arriving[number]:
            work.wait()
        mean = tree.mean([*chunk, *(received for _, received in arriving[number])])
        leaving += [_under_way(dist.isend(mean, rank)) for rank in others]
        if number + AHEAD < len(chunks):
            arriving.append(receive_from(senders, chunks[number + AHEAD][0]))
        arriving[number] = []
    wait(leaving)


def _under_way(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None is for ranks outside of the group
    return work


def receive_from(ranks: Sequence[int], like: Tensor) -> list[tuple[dist.Work, Tensor]]:
    """Begins to receive a tensor from each of `ranks`, a rank that is named twice sends two."""
    received = [torch.empty_like(like) for _ in ranks]
    return [(_under_way(dist.irecv(tensor, rank)), tensor)
            for rank, tensor in zip(ranks, received, strict=True)]


def _send_and_receive(chunks: Sequence[Sequence[Tensor]]) -> None:
    """Sends every chunk to the root, and takes its mean in the same place once it has left."""
    leaving = [[_under_way(dist.isend(part, LEADER)) for part in chunk] for chunk in chunks]
    arriving = []
    for works, chunk in zip(leaving, chunks, strict=True):
        wait(works)
        arriving.append(_under_way(dist.irecv(chunk[0], LEADER)))
    wait(arriving)


def wait(works: Sequence[dist.Work]) -> None:
    """Returns when all messages have left or arrived."""
    for work in works:
        work.wait()


def reduce_scatter_all_gather(rows: Sequence[Tensor], tree: ShardTree,
                              group: dist.ProcessGroup | None = None) -> int:
    """Every rank is the root of one N-th: it averages its slice and gives the mean to all.

    The two halves of a ring all-reduce by their own names, and with a row a rank the bytes are the
    same: each rank sends N-1 N-ths of the row in each half.
    """
    ranks, length = tree.ranks, len(rows[0])
    if not length:
        return 0
    size = -(-length // ranks)
    whole = [pad(row, (0, size * ranks - length)) if length % ranks else row for row in rows]
    leaving = whole[0]
    if len(rows) > 1:  # each rank's slices of all rows, one after the other
        leaving = torch.cat(list(chain.from_iterable(zip(*(row.split(size) for row in whole),
                                                         strict=True))))
    counts = [len(tree.subtrees(rank)) for rank in range(ranks)]
    arriving = leaving.new_empty(sum(counts) * size)
    dist.all_to_all_single(arriving, leaving, [count * size for count in counts],
                           [len(rows) * size] * ranks, group=group)
    dist.all_gather_into_tensor(whole[0], tree.mean(arriving.split(size)), group=group)
    if length % ranks:
        rows[0].copy_(whole[0][:length])
    return reduce_scatter_bytes(rows, ranks)


def reduce_scatter_bytes(rows: Sequence[Tensor], ranks: int) -> int:
    """Bytes that a rank sends: to each other rank one slice of each row, and one of the mean."""
    size = -(-len(rows[0]) // ranks) * rows[0].element_size()
    return (ranks - 1) * (len(rows) + 1) * size
