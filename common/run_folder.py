"""The folder of a run: what stands in it, and that two runs are never mixed there.

    outputs/PartTwo/all-reduce/   logs_rankR.txt  metrics_rankR.jsonl  settings.json
                                  checkpoints/  report.txt  report.json  summary.json
"""

import json
import shutil
from pathlib import Path

from torch import nn

from common import checkpoint_folder
from common.failures import UsageError
from common.process_group import Node
from common.run import KEPT_CHECKPOINTS
from common.settings import Settings

LEADERS_FILES = ("settings.json", "summary.json", "report.txt", "report.json")


def refuse_other_runs(folder: Path, settings: Settings, node: Node) -> None:
    """Raises UsageError when a folder that this command will fill holds another run.

    Part Two looks at all its folders before it trains into the first.
    """
    first = bool(settings.sync) and folder.name == settings.sync[0]
    for name in settings.sync if first else (folder.name,):
        other = folder.parent / name
        if _is_another_run(other, settings.resume) and any(
                path.exists() for path in log_paths(other, node)):
            raise UsageError(f"{other} already holds a run: continue it with --resume auto, start "
                             "over with --resume replace, or choose another --output-dir")


def prepare_folder(folder: Path, settings: Settings, node: Node, model: nn.Module) -> None:
    """Makes the folder ready to be written, and empty for --resume replace. Every rank must call.

    Raises UsageError where it cannot be written, CheckpointError where the disk cannot take the
    checkpoints of `model`.
    """
    try:
        if settings.resume == "replace":
            _remove_run(folder, node)
        folder.mkdir(parents=True, exist_ok=True)
        if node.world.is_leader:
            (folder / "settings.json").write_text(json.dumps(settings.as_json(), indent=2) + "\n")
            checkpoint_folder.remove_partial_files(folder / "checkpoints")
            checkpoint_folder.require_space(
                folder, model, KEPT_CHECKPOINTS + 1 + bool(settings.validation_fraction),
                1 + bool(settings.weight_average))
    except OSError as error:
        raise UsageError(f"the output folder {folder} cannot be written: {error.strerror}") \
            from error


def _remove_run(folder: Path, node: Node) -> None:
    """Deletes what a run writes, and nothing else: this rank's logs, and what the leader wrote."""
    for path in log_paths(folder, node):
        path.unlink(missing_ok=True)
    if node.world.is_leader:
        for name in LEADERS_FILES:
            (folder / name).unlink(missing_ok=True)
        for path in checkpoint_folder.newest(folder / "checkpoints"):
            path.unlink()
        (folder / "checkpoints" / checkpoint_folder.BEST).unlink(missing_ok=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        for path in (folder / "traces").glob("trace_all_*"):
            path.unlink()
    for path in (folder / "traces").glob(f"*_rank{node.world.rank}[_.]*"):
        path.unlink()


def _is_another_run(folder: Path, resume: str) -> bool:
    """Whether what is about to start must not be mixed with what the folder holds."""
    if resume in ("auto", "replace"):
        return False
    return resume == "no" or folder.resolve() not in Path(resume).resolve().parents


def log_paths(folder: Path, node: Node) -> tuple[Path, Path]:
    """This rank's timing log, and its metrics."""
    rank = node.world.rank
    return folder / f"logs_rank{rank}.txt", folder / f"metrics_rank{rank}.jsonl"
