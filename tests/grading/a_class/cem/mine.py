"""Right, and every rank sends everything to every other: too many bytes."""

import torch
import torch.distributed as dist


class Mine:
    def average(self, gradients):
        for gradient in gradients:
            received = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
            dist.all_gather(received, gradient.contiguous())
            gradient.copy_(sum(received) / len(received))
