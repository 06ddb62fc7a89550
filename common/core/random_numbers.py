"""All global random numbers that somebody's model or data may draw from, seeded at once.

    with own_draws():
        seed_all(mix(seed, epoch, number)); sample = dataset[number]
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(number: int) -> None:
    """Seeds torch on all devices, numpy.random and random; `number` is of 64 bits at most."""
    torch.manual_seed(number)
    _seed_others(number)


def seed_sample(number: int) -> None:
    """The same for what draws on the CPU, a sample: a GPU's random numbers stay where they are."""
    torch.default_generator.manual_seed(number)
    _seed_others(number)


def _seed_others(number: int) -> None:
    np.random.seed(number % 2**32)
    random.seed(number)


@contextmanager
def own_draws() -> Iterator[None]:
    """Around draws of the CPU that nothing else shall notice: puts the random states back."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
