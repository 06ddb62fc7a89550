"""The compared variants: each way to average gradients, wired to a model as in the mains."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.core.collectives import world_size
from common.settings.settings import SYNC_NAMES
from common.settings.strategies import VIRTUAL_SYNC_NAMES
from common.settings.user_code import Place
from common.step.gradient_sync import GradientSync
from PartThree.ddp import OWN_BUFFERS, AveragedInBackward, AveragedOnVirtualNodes, buckets
from PartTwo.strategies import SyncOptions, create_strategy
from studies.prediction.grid import COMPUTE_ONLY, DDP_DEFAULT, PART_THREE


class Wired(NamedTuple):
    """A module to call, and its strategy for the seam, to be prepared."""

    replica: nn.Module
    gradient_sync: GradientSync


Wiring = Callable[[nn.Module, Tensor], Wired]


def alone(model: nn.Module, example: Tensor) -> Wired:
    """Computes only: nothing is averaged."""
    return Wired(model, GradientSync())


def by_hand(name: str, wire: str = "float32", bucket_mb: float = 1.0) -> Wiring:
    """A strategy of Part Two."""
    def wire_up(model: nn.Module, example: Tensor) -> Wired:
        return Wired(model, create_strategy(name, SyncOptions(bucket_mb, wire)))
    return wire_up


def on_virtual_nodes(name: str) -> Wiring:
    """A strategy of Part Two, or Part Three, with a virtual node on each rank."""
    def wire_up(model: nn.Module, example: Tensor) -> Wired:
        options = SyncOptions(virtual_nodes=world_size())
        if name != PART_THREE:
            return Wired(model, create_strategy(name, options))
        replica = DistributedDataParallel(model, **OWN_BUFFERS, **buckets(1.0))
        return Wired(replica, AveragedOnVirtualNodes(replica, options))
    return wire_up


def by_ddp(hook: str = "float32", **flags: object) -> Wiring:
    """Part Three with other buckets, or another hook."""
    def wire_up(model: nn.Module, example: Tensor) -> Wired:
        replica = DistributedDataParallel(model, **OWN_BUFFERS, **flags)  # type: ignore[arg-type]
        return Wired(replica, AveragedInBackward(replica, hook, example))
    return wire_up


VARIANTS: dict[str, Wiring] = {
    COMPUTE_ONLY: alone,
    **{name: by_hand(name) for name in SYNC_NAMES},
    "overlapped-all-reduce, bf16 wire": by_hand("overlapped-all-reduce", "bf16"),
    **{f"overlapped-all-reduce, {size:g} MB": by_hand("overlapped-all-reduce", bucket_mb=size)
       for size in (0.25, 4.0, 16.0)},
    "cross-step-all-reduce, bf16 wire": by_hand("cross-step-all-reduce", "bf16"),
    **{f"cross-step-all-reduce, {size:g} MB": by_hand("cross-step-all-reduce", bucket_mb=size)
       for size in (0.25, 4.0, 16.0)},
    DDP_DEFAULT: by_ddp(),
    PART_THREE: by_ddp(**buckets(1.0)),
    f"{PART_THREE}, bf16 hook": by_ddp("bf16", **buckets(1.0)),
    f"{PART_THREE}, powersgd": by_ddp("powersgd", **buckets(1.0)),
    **{f"{name}, virtual nodes": on_virtual_nodes(name)
       for name in (*VIRTUAL_SYNC_NAMES, PART_THREE)},
}


def find_variant(name: str) -> Wiring:
    """The variant called `name`, or of the strategy at that place in a user's file."""
    return by_hand(name) if Place.parse(name) else VARIANTS[name]
