"""Exercise three: an all-reduce that overlaps with backward.

Theory. Backward computes the gradients of the last layer first. Once a gradient is complete nothing
in backward changes it any more, so it can be sent while the layers before are still computing. This
is what DistributedDataParallel does (Li et al., 2020, arXiv:2006.15704), with buckets in place of
single tensors. PyTorch calls a post-accumulate-grad hook with the *parameter* whose `grad` is
complete; dist.all_reduce(..., async_op=True) starts an all-reduce and returns at once. Until its
wait() has returned, the tensor belongs to the all-reduce and must not be read or written.

Bound, for a gradient of G bytes on N ranks and links of B bytes a second:

    bytes   each rank sends 2 (N-1)/N G, as in exercise two: overlap changes when, not how much
    time    not backward + communication, but the longer of the two, and after it the all-reduce of
            the first layer, whose gradient is complete last

Judge, which cannot see the overlap itself; a trace shows it (exercises/README.md has the command):

    python3 scripts/grade.py exercises/three_overlapped.py:OverlappedAllReduce --bytes ring

Useful: Tensor.register_post_accumulate_grad_hook, dist.all_reduce. All ranks must start their
all-reduces in the same order, as collectives match by order. Where all ranks run backward through
the same layers they do. But a layer may get no sample on one rank, such as an expert: there its
hooks are not called. So fix an order, and start an all-reduce only when its turn has come.
"""

from torch import Tensor, nn
from torch.optim import Optimizer


class OverlappedAllReduce:
    """Starts an all-reduce in a hook of each parameter, and waits for all of them in average."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Registers a hook on each parameter that is trained, which starts its all-reduce.

        Every rank calls it once, before the first step. It sends nothing, and leaves weights and
        optimizer as they are.
        """
        raise NotImplementedError("prepare is not written yet")

    def average(self, gradients: list[Tensor]) -> None:
        """Returns when each gradient, in place, is its mean over all ranks; returns nothing.

        Every rank calls it after each backward. `gradients` are those of the model, the same on
        every rank. A parameter that no rank's loss depends on has no gradient, calls no hook, and
        is not in the list. One that only other ranks' depends on calls no hook here either, but is
        in the list, with zeros: what no hook has sent is sent now. The next step must find nothing
        left of this one.
        """
        raise NotImplementedError("average is not written yet")
