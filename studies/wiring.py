"""How a strategy meets a model, as the mains of the three parts do it.

    wired = by_hand(model, None, name="all-reduce")
    wired.gradient_sync.prepare(model, optimizer)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.step.gradient_sync import GradientSync
from PartThree.ddp import OWN_BUFFERS, AveragedInBackward, AveragedOnVirtualNodes, buckets
from PartTwo.strategies import create_strategy
from PartTwo.sync_options import DEFAULTS, SyncOptions


class Wired(NamedTuple):
    """The module to call, and the seam beside it, which is still to be prepared."""

    replica: nn.Module
    gradient_sync: GradientSync


WireUp = Callable[[nn.Module, Tensor | None], Wired]
"""Wires a model; the tensor is two samples (2, ...) for which DDP's buckets are rebuilt, or None.
Every rank must call it."""


def alone(model: nn.Module, example: Tensor | None = None) -> Wired:
    """Part One: on several ranks nothing is averaged."""
    return Wired(model, GradientSync())


def by_hand(model: nn.Module, example: Tensor | None, *, name: str,
            options: SyncOptions = DEFAULTS) -> Wired:
    """Part Two, with the strategy called `name`, or at that place in a user's file."""
    return Wired(model, create_strategy(name, options))


def by_ddp(model: nn.Module, example: Tensor | None, *, hook: str = "float32",
           options: SyncOptions = DEFAULTS, flags: dict[str, Any] | None = None) -> Wired:
    """Part Three; `flags` are DDP's own in place of those that the part gives."""
    given = buckets(options.bucket_mb) if flags is None else flags
    replica = DistributedDataParallel(model, **OWN_BUFFERS, **given)
    if options.virtual_nodes:
        return Wired(replica, AveragedOnVirtualNodes(replica, options))
    return Wired(replica, AveragedInBackward(replica, hook, example))
