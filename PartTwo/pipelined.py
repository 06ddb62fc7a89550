"""Gather/scatter and all-reduce taken apart into messages, so that no rank waits longer than
the links require.

    python3 PartTwo/main.py ... --sync gather-scatter-pipelined,reduce-scatter
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from common.core.collectives import LEADER, total_bytes, world_size
from PartTwo.by_hand import Flat
from PartTwo.lanes import CHUNK_BYTES

AHEAD = 8  # chunks that the root is ready to receive while it averages one


def pipelined_gather_scatter(row: Tensor) -> int:
    """Task one at its own bound: the root averages and returns one chunk while the next arrives.

    Links carry both ways at once, so the root's link needs (N-1) rows' time and not twice that.
    Sums in the order of ranks, as gather/scatter does: the same mean, bit for bit. Replaces `row`,
    in place, by its mean over all ranks; returns the bytes this rank sent. Every rank must call it.
    """
    chunks = row.split(max(1, CHUNK_BYTES // row.element_size()))
    if dist.get_rank() == LEADER:
        _average_all(chunks)
        return (world_size() - 1) * total_bytes([row])
    _send_and_receive(chunks)
    return total_bytes([row])


def _average_all(chunks: Sequence[Tensor]) -> None:
    others = [rank for rank in range(world_size()) if rank != LEADER]
    arriving = [_receive_from(others, chunk) for chunk in chunks[:AHEAD]]
    leaving: list[dist.Work] = []
    for number, chunk in enumerate(chunks):
        for work, received in arriving[number]:
            work.wait()
            chunk.add_(received)
        chunk.div_(world_size())
        leaving += [_under_way(dist.isend(chunk, rank)) for rank in others]
        if number + AHEAD < len(chunks):
            arriving.append(_receive_from(others, chunks[number + AHEAD]))
        arriving[number] = []
    _wait(leaving)


def _under_way(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None is for ranks outside of the group
    return work


def _receive_from(ranks: Sequence[int], like: Tensor) -> list[tuple[dist.Work, Tensor]]:
    received = [torch.empty_like(like) for _ in ranks]
    return [(_under_way(dist.irecv(tensor, rank)), tensor)
            for rank, tensor in zip(ranks, received, strict=True)]


def _send_and_receive(chunks: Sequence[Tensor]) -> None:
    """Sends every chunk to the root, and takes its mean in the same place once it has left."""
    leaving = [_under_way(dist.isend(chunk, LEADER)) for chunk in chunks]
    arriving = []
    for work, chunk in zip(leaving, chunks, strict=True):
        work.wait()
        arriving.append(_under_way(dist.irecv(chunk, LEADER)))
    _wait(arriving)


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def reduce_scatter_all_gather(row: Tensor) -> int:
    """Every rank is the root of one N-th: it averages its slice and gives the mean to all.

    The two halves of a ring all-reduce by their own names, and the bytes are the same: each rank
    sends N-1 N-ths of the row in each half. Sums in the order of ranks, whoever adds: the same mean
    as gather/scatter's, bit for bit. Replaces `row`, in place, by its mean over all ranks; returns
    the bytes this rank sent. Every rank must call it.
    """
    slices = torch.nn.functional.pad(row, (0, -len(row) % world_size()))
    received = torch.empty_like(slices)
    dist.all_to_all_single(received, slices)
    mine = received.view(world_size(), -1).mean(dim=0)
    means = torch.empty_like(slices)
    dist.all_gather_into_tensor(means, mine)
    row.copy_(means[:len(row)])
    return 2 * (world_size() - 1) * total_bytes([mine])


flat_gather_scatter = partial(Flat, pipelined_gather_scatter)
flat_reduce_scatter = partial(Flat, reduce_scatter_all_gather)
