"""Right: a ring, as the bound asks for."""

import torch
import torch.distributed as dist


class Mine:
    def average(self, gradients):
        rank, size = dist.get_rank(), dist.get_world_size()
        row = torch.cat([gradient.reshape(-1) for gradient in gradients])
        chunks = row.tensor_split(size)
        for turn in range(2 * size - 2):
            leaving, arriving = chunks[(rank - turn) % size], chunks[(rank - turn - 1) % size]
            sending, other = dist.isend(leaving.clone(), (rank + 1) % size), arriving.clone()
            dist.recv(other, (rank - 1) % size)
            sending.wait()
            arriving.copy_(arriving + other if turn < size - 1 else other)
        row /= size
        for gradient, mean in zip(gradients, row.split([each.numel() for each in gradients])):
            gradient.copy_(mean.view_as(gradient))
