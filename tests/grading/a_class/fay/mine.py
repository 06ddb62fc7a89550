"""Wrong twice: a view that takes only contiguous gradients, and rank 3 gets no mean back."""

import torch
import torch.distributed as dist


class Mine:
    def average(self, gradients):
        rank, size, distance = dist.get_rank(), dist.get_world_size(), 1
        row = torch.cat([gradient.view(-1) for gradient in gradients])
        while distance < size:
            if rank % (2 * distance) == distance:
                dist.send(row, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < size:
                other = torch.empty_like(row)
                dist.recv(other, rank + distance)
                row += other
            distance *= 2
        row /= size
        if rank > 0:
            dist.recv(row, 0)
        for each in (1, 2):
            if rank == 0 and each < size:
                dist.send(row, each)
        for gradient, mean in zip(gradients, row.split([each.numel() for each in gradients])):
            gradient.copy_(mean.view_as(gradient))
