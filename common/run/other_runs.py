"""Two runs are never mixed in one folder: the second is refused, at once and without torch.

Each rank goes by its own logs, since the nodes of a cluster need not share a disk.
"""

import os
from pathlib import Path

from common.core.events import read_events
from common.core.failures import UsageError
from common.core.world import World
from common.settings.resume import Resume
from common.settings.settings import Settings


def run_name(part: str, strategy: str) -> str:
    """A run's folder below --output-dir: Part Two, which has several strategies, has one a run."""
    return f"{part}/{strategy}" if part == "PartTwo" else part


def refuse_other_runs(part: str, settings: Settings, world: World) -> None:
    """Raises UsageError when a folder that this command will fill holds another run."""
    for strategy in settings.sync:
        refuse_other_run(settings.output_dir / run_name(part, strategy.label), settings, world)


def refuse_other_run(folder: Path, settings: Settings, world: World) -> None:
    """Raises UsageError when `folder` holds another run's logs of this rank.

    One that failed before its first step holds nothing that could be lost.
    """
    if _is_another_run(folder, settings.resume) and _has_begun(folder, world):
        raise UsageError(f"{folder} already holds a run: continue it with --resume auto, start "
                         "over with --resume replace, or choose another --output-dir")


def _has_begun(folder: Path, world: World) -> bool:
    """Returns True if `folder` holds logs of this rank, and of more than a start that failed."""
    text, metrics = log_paths(folder, world)
    if not (os.path.exists(text) or os.path.exists(metrics)):
        return False
    kinds = {event["event"] for event in read_events(metrics)} if metrics.is_file() else set()
    return ("start" not in kinds or "step" in kinds
            or any((folder / "checkpoints").glob("*.pt")))


def _is_another_run(folder: Path, resume: Resume) -> bool:
    """Returns True if the folder's contents are of another run than the one to start."""
    if resume.is_auto or resume.replaces:
        return False
    return not resume.file or folder.resolve() not in Path(resume.file).resolve().parents


def log_paths(folder: Path, world: World) -> tuple[Path, Path]:
    """This rank's timing log, and its metrics."""
    return folder / f"logs_rank{world.name}.txt", folder / f"metrics_rank{world.name}.jsonl"
