"""The variants that are compared: every way to average gradients, wired as the mains wire it."""

from functools import partial

from common.core.collectives import world_size
from common.settings.strategies import SYNC_NAMES
from common.settings.user_code import Place
from PartTwo.sync_options import SyncOptions
from studies.prediction.grid import COMPUTE_ONLY, DDP_DEFAULT, PART_THREE
from studies.wiring import WireUp, alone, by_ddp, by_hand

OVERLAPPING, SIZES = ("overlapped-all-reduce", "cross-step-all-reduce"), (0.25, 4.0, 16.0)
VARIANTS: dict[str, WireUp] = {
    COMPUTE_ONLY: alone,
    **{name: partial(by_hand, name=name) for name in SYNC_NAMES},
    **{f"{name}, bf16 wire": partial(by_hand, name=name, options=SyncOptions(wire="bf16"))
       for name in OVERLAPPING},
    **{f"{name}, {size:g} MB": partial(by_hand, name=name, options=SyncOptions(size))
       for name in OVERLAPPING for size in SIZES},
    DDP_DEFAULT: partial(by_ddp, flags={}),
    PART_THREE: by_ddp,
    f"{PART_THREE}, bf16 hook": partial(by_ddp, hook="bf16"),
}
ON_VIRTUAL_NODES = ", virtual nodes"


def find_variant(name: str) -> WireUp:
    """The variant called `name`, or of the strategy at that place in a user's file.

    "NAME, virtual nodes" has a virtual node on each rank.
    """
    if Place.parse(name):
        return partial(by_hand, name=name)
    if not name.endswith(ON_VIRTUAL_NODES):
        return VARIANTS[name]
    options, name = SyncOptions(virtual_nodes=world_size()), name.removesuffix(ON_VIRTUAL_NODES)
    return (partial(by_ddp, options=options) if name == PART_THREE
            else partial(by_hand, name=name, options=options))
