"""A strategy of one's own: a class with `average`, and as a plain function.

    python3 PartTwo/main.py --master-ip 127.0.0.1 --num-nodes 2 --rank R \
        --sync examples/own_sync.py:MyAllReduce,all-reduce
"""

import torch.distributed as dist
from torch import Tensor


class MyAllReduce:
    """Averages each gradient by itself, in place."""

    def average(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())


def by_broadcast(gradients: list[Tensor]) -> None:
    """Sums on rank 0, which then tells all the others."""
    for gradient in gradients:
        dist.reduce(gradient, dst=0)
        gradient.div_(dist.get_world_size())
        dist.broadcast(gradient, src=0)
