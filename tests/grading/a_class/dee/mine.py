"""Wrong: after dist.reduce rank 0 alone has the sum."""

import torch.distributed as dist


class Mine:
    def average(self, gradients):
        for gradient in gradients:
            dist.reduce(gradient, dst=0)
            gradient /= dist.get_world_size()
