"""Exercise two: all-reduce around a ring, made of point-to-point messages only.

Theory. Put the ranks in a ring, in which rank r sends to r+1 and receives from r-1, and cut the
gradient into N chunks. In the first half, reduce-scatter, N-1 turns pass chunks on: each rank adds
its own numbers to the chunk that has arrived and sends that sum in the next turn, so that at the
end every rank holds the sum of one chunk. In the second half, all-gather, N-1 more turns pass the
finished sums around. No rank is special, and in each turn all links carry one N-th of the gradient.
Patarasuk and Yuan (2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations")
prove that no all-reduce can send fewer bytes per rank.

Bound, for a gradient of G bytes on N ranks and links of B bytes a second:

    bytes   each rank sends 2 (N-1)/N G, less than 2 G on any number of ranks
    time    2 (N-1)/N G / B, and 2 (N-1) times what a message needs to start

Judge:

    python3 scripts/grade.py exercises/two_ring_all_reduce.py:RingAllReduce --bytes ring

Useful: dist.isend, dist.irecv, dist.recv, and wait() of what isend and irecv return. A ring in
which every rank first waits until its blocking dist.send has been received stands still.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class RingAllReduce:
    """Averages around a ring: two methods to write, and one that uses them."""

    def average(self, gradients: list[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks. Nothing to write here."""
        row = torch.cat([gradient.reshape(-1) for gradient in gradients])
        chunks = row.tensor_split(dist.get_world_size())  # views: what they hold, row holds
        self.reduce_scatter(chunks)
        self.all_gather(chunks)
        row /= dist.get_world_size()
        means = row.split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def reduce_scatter(self, chunks: Sequence[Tensor]) -> None:
        """Adds, in place, until one chunk of each rank is the sum over all ranks.

        There are as many chunks as ranks, one included; the first are an element longer where the
        sizes do not divide. Every rank calls it. Which chunk is complete on which rank is your
        choice. Only point-to-point messages, N-1 of one chunk each from every rank.
        """
        raise NotImplementedError("reduce_scatter is not written yet")

    def all_gather(self, chunks: Sequence[Tensor]) -> None:
        """Replaces, in place, every chunk by the sum that reduce_scatter has left on some rank.

        Every rank calls it. Only point-to-point messages, N-1 of one chunk each from every rank.
        """
        raise NotImplementedError("all_gather is not written yet")
