"""Choice of a run's convolutions, made at its start and then kept.

They decide in which order numbers are added, so a resumed run goes on as its checkpoint says, on
another processor too. What was asked for stays in the settings; what ran stands under `ran_on`.

    python3 PartOne/main.py --convolutions auto --resume auto
"""


from common.arithmetic.choice import AUTO, LIBRARY, POOLED_LAST
from common.cluster.node import Node
from common.core.collectives import broadcast_bytes
from common.run import checkpoint_folder
from common.run.checkpoint_file import peek
from common.run.other_runs import refuse_other_runs, run_name
from common.run.trackers import find_tracker
from common.settings.settings import Settings


def prepare_runs(part: str, settings: Settings, node: Node) -> str:
    """The convolutions to use: as `settings` say, or those of the run to be resumed for "auto".

    `part` is the main's name. For a fresh run "auto" stays "auto": the rule needs the model.
    Every rank must call; all get the same. Raises UsageError where a folder of `part` holds another
    run and, on the leader, for a tracker that cannot be used.
    """
    refuse_other_runs(part, settings, node.world)
    if node.world.is_leader:
        find_tracker(settings.tracker)
    before = _convolutions_of_the_run_to_resume(part, settings, node)
    return before if settings.convolutions == AUTO and before else settings.convolutions


def _convolutions_of_the_run_to_resume(part: str, settings: Settings, node: Node) -> str:
    """Convolutions in the newest checkpoint that the leader can read; "" for a fresh run."""
    names: object = ""
    if node.world.is_leader:
        saved = (peek(path).get("ran_on")
                 for strategy in settings.sync
                 for path in checkpoint_folder.to_resume(
                     settings.output_dir / run_name(part, strategy.label), settings.resume))
        ran_on = next((each for each in saved if isinstance(each, dict)), {})
        names = ran_on.get("convolutions")
        if names == LIBRARY and ran_on.get("pooling") == "last":
            names = POOLED_LAST
    mine = names if isinstance(names, str) else ""
    return broadcast_bytes(mine.encode(), node.device).decode()
