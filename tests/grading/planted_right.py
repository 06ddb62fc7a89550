"""Strategies that average, as they may be written; the last two say that they are compressed."""

import torch
import torch.distributed as dist

from PartTwo.overlapped import OverlappedAllReduce
from PartTwo.strategies import SyncOptions


def size():
    return dist.get_world_size()


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflat(row, tensors):
    for tensor, part in zip(tensors, row.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))


def per_tensor(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= size()


class Flat:
    def average(self, gradients):
        row = flat(gradients)
        dist.all_reduce(row)
        unflat(row / size(), gradients)


class Ring:
    def average(self, gradients):
        if size() == 1:
            return
        row = flat(gradients)
        chunks = list(row.tensor_split(size()))
        rank, right, left = dist.get_rank(), (dist.get_rank() + 1) % size(), dist.get_rank() - 1
        for turn in range(2 * size() - 2):
            gone, comes = chunks[(rank - turn) % size()], chunks[(rank - turn - 1) % size()]
            sending, other = dist.isend(gone.clone(), right), torch.empty_like(comes)
            dist.recv(other, left % size())
            sending.wait()
            comes.copy_(comes + other if turn < size() - 1 else other)
        unflat(row / size(), gradients)


class Tree:
    def average(self, gradients):
        row = flat(gradients)
        rank, distance = dist.get_rank(), 1
        while distance < size():
            if rank % (2 * distance) == distance:
                dist.send(row, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < size():
                other = torch.empty_like(row)
                dist.recv(other, rank + distance)
                row += other
            distance *= 2
        row /= size()
        while distance > 1:
            distance //= 2
            if rank % (2 * distance) == 0 and rank + distance < size():
                dist.send(row, rank + distance)
            elif rank % (2 * distance) == distance:
                dist.recv(row, rank - distance)
        unflat(row, gradients)


class BucketsInHooks:
    def prepare(self, model, optimizer):
        self.order = list(model.parameters())[::-1]
        self.works, self.left, self.ready = [], list(self.order), set()
        for parameter in self.order:
            parameter.register_post_accumulate_grad_hook(self.send_in_turn)

    def send_in_turn(self, parameter):
        self.ready.add(parameter)
        while self.left and self.left[0] in self.ready:
            self.send(self.left.pop(0))

    def send(self, parameter):
        parameter.grad /= size()
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    def average(self, gradients):
        for parameter in self.left:
            if parameter.grad is not None:
                self.send(parameter)
        for work in self.works:
            work.wait()
        self.works, self.left, self.ready = [], list(self.order), set()


def gather_scatter(gradients):
    for gradient in gradients:
        row, root = gradient.reshape(-1).clone(), dist.get_rank() == 0
        rows = [torch.empty_like(row) for _ in range(size())] if root else None
        dist.gather(row, rows, dst=0)
        if root:
            mean = torch.stack(rows).mean(0)
            dist.scatter(row, [mean] * size(), src=0)
        else:
            dist.scatter(row, src=0)
        gradient.copy_(row.view_as(gradient))


def reduce_and_broadcast(gradients):
    for gradient in gradients:
        dist.reduce(gradient, dst=0)
        gradient /= size()
        dist.broadcast(gradient, src=0)


class AllGather:
    def average(self, gradients):
        row = flat(gradients)
        rows = [torch.empty_like(row) for _ in range(size())]
        dist.all_gather(rows, row)
        unflat(torch.stack(rows).mean(0), gradients)


def asynchronous(gradients):
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient.div_(size())


class WaitsForEachPart:
    def average(self, gradients):
        row = flat(gradients)
        parts = row.split([gradient.numel() for gradient in gradients])
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        for gradient, part, work in zip(gradients, parts, works):
            work.wait()
            part /= size()
            gradient.copy_(part.view_as(gradient))


class DividesInAFuture:
    def average(self, gradients):
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        futures = [work.get_future().then(lambda sums: sums.value()[0].div_(size()))
                   for work in works]
        for future, work in zip(futures, works):
            future.wait()
            work.wait()


class DividesFirst:
    def average(self, gradients):
        for gradient in gradients:
            gradient.div_(size())
            dist.all_reduce(gradient)


class OneOfOurs(OverlappedAllReduce):
    def __init__(self):
        super().__init__(SyncOptions())


class HalfTheBytes:
    tolerance = 1e-2

    def average(self, gradients):
        row = flat(gradients).to(torch.float16)
        dist.all_reduce(row)
        unflat(row.double() / size(), gradients)


def eight_bits(gradients):
    row = flat(gradients)
    scale = row.abs().max() / 127
    codes, scales = [], []
    for rank in range(size()):
        mine = dist.get_rank() == rank
        code = (row / scale).round().to(torch.int8) if mine else torch.empty(
            len(row), dtype=torch.int8)
        its = scale.clone() if mine else torch.empty_like(scale)
        dist.broadcast(code, rank)
        dist.broadcast(its, rank)
        codes.append(code.double())
        scales.append(its)
    unflat(sum(code * its for code, its in zip(codes, scales)) / size(), gradients)


eight_bits.tolerance = 0.05
