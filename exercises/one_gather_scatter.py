"""Exercise one: gather and scatter. One rank averages for all.

Theory. Each rank has the gradient of its shard; what the optimizer needs is their mean. The
simplest way to it: every rank sends its gradient to rank 0, the root, which averages and sends the
mean back. It is right, and it does not scale. The root's link carries everything, so a step waits
longer the more ranks there are, while the links of the other ranks are idle. Parameter servers
(Li et al., 2014, "Scaling Distributed Machine Learning with the Parameter Server") divide the
root's work among several machines for that reason.

Bound, for a gradient of G bytes on N ranks and links of B bytes a second:

    bytes   the root sends (N-1) G and receives as many; any other rank sends G and receives G
    time    2 (N-1) G / B, as the root must have received before it can send

Judge:

    python3 scripts/grade.py exercises/one_gather_scatter.py:GatherScatter --bytes root

Useful: dist.get_rank, dist.get_world_size, and dist.gather and dist.scatter or dist.send and
dist.recv (https://docs.pytorch.org/docs/stable/distributed.html).
"""

from torch import Tensor


class GatherScatter:
    """Averages through rank 0."""

    def average(self, gradients: list[Tensor]) -> None:
        """Replaces each gradient, in place, by its mean over all ranks; returns nothing.

        Every rank calls it once a step, with as many tensors of the same shapes and types in the
        same order. It must be right on any number of ranks, one included. A tensor may have any
        shape and need not be contiguous in memory (Tensor.contiguous, Tensor.copy_). Exceptions of
        torch.distributed must not be caught: they tell that another rank is lost.
        """
        raise NotImplementedError("average is not written yet")
