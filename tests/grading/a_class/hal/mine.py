"""Hostile: rank 1 never comes back."""

import time

import torch.distributed as dist


def Mine(gradients):
    while dist.get_rank() == 1:
        time.sleep(1)
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
