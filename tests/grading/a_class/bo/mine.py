"""Right: one all-reduce of everything."""

import torch
import torch.distributed as dist


def Mine(gradients):
    row = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(row)
    row /= dist.get_world_size()
    for gradient, mean in zip(gradients, row.split([each.numel() for each in gradients])):
        gradient.copy_(mean.view_as(gradient))
