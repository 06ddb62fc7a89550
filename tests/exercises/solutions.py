"""Reference solutions of the exercises; classes are named as in exercises/."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from exercises import two_ring_all_reduce

ROOT = 0


class GatherScatter:
    """One tensor after the other, by the two collectives."""

    def average(self, gradients: list[Tensor]) -> None:
        ranks, is_root = dist.get_world_size(), dist.get_rank() == ROOT
        for gradient in gradients:
            row = gradient.contiguous()
            received = [torch.empty_like(row) for _ in range(ranks)] if is_root else None
            dist.gather(row, received, dst=ROOT)
            means = [torch.stack(received).mean(0)] * ranks if received else None
            dist.scatter(row, means, src=ROOT)
            gradient.copy_(row)


class RingAllReduce(two_ring_all_reduce.RingAllReduce):
    """Rank r holds the sum of chunk r+1 after the first half."""

    def reduce_scatter(self, chunks: Sequence[Tensor]) -> None:
        for turn in range(len(chunks) - 1):
            leaving = (dist.get_rank() - turn) % len(chunks)
            arrived = self._pass_on(chunks[leaving], torch.empty_like(chunks[leaving - 1]))
            chunks[leaving - 1].add_(arrived)

    def all_gather(self, chunks: Sequence[Tensor]) -> None:
        for turn in range(len(chunks) - 1):
            leaving = (dist.get_rank() + 1 - turn) % len(chunks)
            self._pass_on(chunks[leaving], chunks[leaving - 1])

    def _pass_on(self, leaving: Tensor, arriving: Tensor) -> Tensor:
        """Sends to the right and fills `arriving` from the left; returns it."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sending = dist.isend(leaving, (rank + 1) % ranks)
        dist.recv(arriving, (rank - 1) % ranks)
        assert sending is not None  # None is for ranks outside of the group
        sending.wait()
        return arriving


class OverlappedAllReduce:
    """An all-reduce for each parameter, the last one's first, whatever hooks are called."""

    def __init__(self) -> None:
        self._works: list[dist.Work] = []
        self._order: list[nn.Parameter] = []
        self._left: list[nn.Parameter] = []
        self._ready: set[Tensor] = set()

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._order = [each for each in model.parameters() if each.requires_grad][::-1]
        self._left = list(self._order)
        for parameter in self._order:
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: Tensor) -> None:
        self._ready.add(parameter)
        while self._left and self._left[0] in self._ready:
            self._start(self._left.pop(0))

    def _start(self, parameter: Tensor) -> None:
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None  # None is for ranks outside of the group
        self._works.append(work)

    def average(self, gradients: list[Tensor]) -> None:
        for parameter in self._left:
            if parameter.grad is not None:  # on another rank a hook may have started it
                self._start(parameter)
        for work in self._works:
            work.wait()
        for gradient in gradients:
            gradient /= dist.get_world_size()
        self._works.clear()
        self._ready.clear()
        self._left = list(self._order)
