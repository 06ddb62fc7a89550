"""The flags of the seam: who averages what, how often, and in which format.

    python3 PartTwo/main.py --sync local-sgd --sync-every 100 ...
"""

import argparse
from typing import Any

from common.core.failures import UsageError
from common.core.settings import (
    COMM_HOOKS,
    LOCAL_SYNC_NAMES,
    LOCAL_WIRES,
    PARALLEL,
    SYNC_NAMES,
    WIRES,
    Settings,
)
from common.options.flag_types import count, fraction, positive, sync_list


def add_seam_flags(parser: argparse.ArgumentParser, part: str) -> None:
    """Adds those that `part` has: Part Two and the preflight, or Part Three."""
    group = parser.add_argument_group("the seam")
    if part != "PartThree":
        group.add_argument("--sync", type=sync_list, default="gather-scatter,all-reduce",
                           metavar="NAME[,NAME]", help="how to average gradients: "
                           f"{', '.join(SYNC_NAMES)}; or, another algorithm, the weights now and "
                           f"then: {', '.join(LOCAL_SYNC_NAMES)}; several run one after the other "
                           "(default: gather-scatter,all-reduce)")
        _add_local_flags(group)
        group.add_argument("--wire", choices=WIRES, default="float32",
                           help="format in which gradients travel, or, int8 and int4 too, the "
                           "progress between two meetings; what rounding takes is added to the "
                           "next (default: float32, which is exact)")
    group.add_argument("--bucket-mb", type=positive, default=1.0, metavar="MB",
                       help="of each bucket in which gradients leave in backward (default: 1)")
    if part == "PartThree":
        group.add_argument("--comm-hook", choices=COMM_HOOKS, default="none",
                           help="how DDP compresses gradients; none is exact (default: none)")
        group.add_argument("--parallel", choices=PARALLEL, default="ddp", help="one machine's "
                           "alternatives, to compare with; "
                           "data-parallel: one process that spreads each batch over its GPUs; "
                           "model-split: each rank's model over two devices (default: ddp)")


def _add_local_flags(group: Any) -> None:
    group.add_argument("--sync-every", type=count, metavar="H",
                       help="least steps of a rank by itself between meetings (default: 50)")
    group.add_argument("--outer-learning-rate", type=positive, metavar="X",
                       help="of diloco's own optimiser, at meetings (default: 0.7)")
    group.add_argument("--outer-momentum", type=fraction, metavar="X",
                       help="of the same, by Nesterov (default: 0.9)")


LOCAL_FLAGS = {"sync_every": LOCAL_SYNC_NAMES, "outer_learning_rate": ("diloco",),
               "outer_momentum": ("diloco",)}


def settle_local_flags(flags: dict[str, Any]) -> None:
    """Drops those flags, in place, that were not given: their defaults stand in Settings.

    Raises UsageError for a flag that none of the chosen strategies takes notice of.
    """
    for name, strategies in LOCAL_FLAGS.items():
        if flags.get(name) is None:
            flags.pop(name, None)
        elif not set(strategies) & set(flags["sync"]):
            raise UsageError(f"--{name.replace('_', '-')} means nothing without --sync "
                             f"{' or '.join(strategies)}")


def check_seam(settings: Settings) -> None:
    """Raises UsageError for flags that do not go together."""
    if settings.wire != "float32" and any(name.endswith("per-tensor") for name in settings.sync):
        raise UsageError(f"--wire {settings.wire} needs gradients in few long messages: choose a "
                         "--sync without -per-tensor")
    by_gradients = [name for name in settings.sync if name not in LOCAL_SYNC_NAMES]
    if settings.wire in LOCAL_WIRES and by_gradients:
        raise UsageError(f"--wire {settings.wire} is for --sync {' and '.join(LOCAL_SYNC_NAMES)}, "
                         f"and {by_gradients[0]} sends gradients: choose bf16 or fp16")
    if settings.local_sync and settings.batch_norm == "synchronised":
        raise UsageError("--batch-norm synchronised lets the ranks meet in every layer of every "
                         f"step, which --sync {settings.local_sync[0]} is there to avoid: leave "
                         "out one of the two")
