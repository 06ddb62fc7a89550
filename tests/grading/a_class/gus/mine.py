"""Wrong: divides by two, whatever the number of ranks."""

import torch.distributed as dist


class Mine:
    def average(self, gradients):
        for gradient in gradients:
            dist.all_reduce(gradient)
            if dist.get_world_size() > 1:
                gradient /= 2
