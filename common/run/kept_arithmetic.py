"""Choice of a run's arithmetic and convolutions, made at its start and then kept.

They decide the bits, so a resumed run goes on as its checkpoint says, on another processor too.
What was asked for stays in the settings; what ran stands under `ran_on`.

    python3 PartOne/main.py --arithmetic native --resume auto
"""

from typing import Any

from common.arithmetic import portable
from common.arithmetic.choice import AUTO, LIBRARY, POOLED_LAST
from common.arithmetic.kernels import why_not
from common.arithmetic.products import NATIVE, PORTABLE
from common.cluster.devices import use_threads
from common.cluster.node import Node
from common.core.collectives import broadcast_bytes, gather_bytes
from common.core.failures import UsageError
from common.run import checkpoint_folder
from common.run.checkpoint_file import peek
from common.run.other_runs import refuse_other_runs, run_name
from common.run.trackers import find_tracker
from common.settings.settings import Settings


def prepare_runs(part: str, settings: Settings, node: Node) -> str:
    """Makes this process compute by the run's arithmetic, and returns its convolutions.

    They are as `settings` say, or those of the run to be resumed for "auto". `part` is the main's
    name. For a fresh run "auto" convolutions stay "auto": the rule needs the model. Every rank must
    call; all get the same. Raises UsageError where a folder of `part` holds another run and, on the
    leader, for a tracker that cannot be used.
    """
    refuse_other_runs(part, settings, node.world)
    if node.world.is_leader:
        find_tracker(settings.tracker)
    before = _run_to_resume(part, settings, node)
    arithmetic = broadcast_bytes(arithmetic_of(before).encode(), node.device).decode()
    use_arithmetic(settings, node, arithmetic if settings.arithmetic == AUTO else "")
    convolutions = broadcast_bytes(_convolutions(before).encode(), node.device).decode()
    return convolutions if settings.convolutions == AUTO and convolutions else settings.convolutions


def use_arithmetic(settings: Settings, node: Node, before: str = "") -> None:
    """Makes this process compute by the arithmetic of `settings`, or of the run `before`.

    On a GPU, or where some rank's machine can compile nothing, "auto" is native; virtual nodes then
    compute with one thread, unless --threads says otherwise. Every rank must call. Raises
    UsageError naming a rank that cannot do what --arithmetic asks for, and RanksDisagree for other
    threads.
    """
    wanted = before or (PORTABLE if settings.is_portable else NATIVE)
    if wanted == PORTABLE and node.device.type == "cpu":
        reasons = [each.decode() for each in gather_bytes(why_not().encode(), node.device)]
        for rank, reason in enumerate(reasons):
            if reason and settings.arithmetic == PORTABLE:
                who = f"{node.ranks[rank]}: " if node.ranks else ""
                raise UsageError(f"{who}--arithmetic portable needs compiled loops, but {reason}: "
                                 "install one (docs/virtual_nodes.md), or give --arithmetic native")
        wanted = NATIVE if any(reasons) else wanted
    portable.use(wanted if node.device.type == "cpu" else NATIVE)
    if settings.virtual_nodes and settings.is_portable and wanted == NATIVE:
        # the settings have left open what decides bits now
        node.threads = use_threads(settings.threads or 1, ranks_here=1)
        node.agree("threads of native arithmetic", str(node.threads))


def arithmetic_of(ran_on: object) -> str:
    """The arithmetic that a checkpoint's `ran_on` names; "" where there is no checkpoint.

    Checkpoints without one are older than portable arithmetic, and so native.
    """
    if not isinstance(ran_on, dict) or not ran_on:
        return ""
    return PORTABLE if str(ran_on.get("arithmetic")).startswith(PORTABLE) else NATIVE


def _run_to_resume(part: str, settings: Settings, node: Node) -> dict[str, Any]:
    """On the leader, the `ran_on` of the newest checkpoint that it can read; {} for a fresh run."""
    if not node.world.is_leader:
        return {}
    saved = (peek(path).get("ran_on")
             for strategy in settings.sync
             for path in checkpoint_folder.to_resume(
                 settings.output_dir / run_name(part, strategy.label), settings.resume))
    return next((each for each in saved if isinstance(each, dict)), {})


def _convolutions(ran_on: dict[str, Any]) -> str:
    names = ran_on.get("convolutions")
    if names == LIBRARY and ran_on.get("pooling") == "last":
        return POOLED_LAST
    return names if isinstance(names, str) else ""
