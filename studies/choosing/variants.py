"""The variants that are compared: every way to average gradients, wired as the mains wire it."""

from functools import partial

from common.settings.strategies import SYNC_NAMES
from PartTwo.sync_options import SyncOptions
from studies.prediction.grid import COMPUTE_ONLY, DDP_DEFAULT, PART_THREE
from studies.wiring import WireUp, alone, by_ddp, by_hand

VARIANTS: dict[str, WireUp] = {
    COMPUTE_ONLY: alone,
    **{name: partial(by_hand, name=name) for name in SYNC_NAMES},
    **{f"{name}, bf16 wire": partial(by_hand, name=name, options=SyncOptions(wire="bf16"))
       for name in ("overlapped-all-reduce", "cross-step-all-reduce")},
    DDP_DEFAULT: partial(by_ddp, flags={}),
    PART_THREE: by_ddp,
}


def find_variant(name: str) -> WireUp:
    """The variant called `name`, or of the strategy at that place in a user's file."""
    return VARIANTS.get(name) or partial(by_hand, name=name)
