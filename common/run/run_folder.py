"""The folder of a run: what stands in it, and how it is made ready.

    outputs/PartTwo/all-reduce/   logs_rankR.txt  metrics_rankR.jsonl  settings.json
                                  checkpoints/  report.txt  report.json  summary.json
"""

import json
import os
import shutil
from pathlib import Path

from torch import nn

from common.cluster.node import Node
from common.core.failures import UsageError, writing
from common.options.settings_file import RAN_ON
from common.run import checkpoint_folder
from common.run.folder_lock import FolderLock
from common.run.other_runs import log_paths
from common.run.run import Run
from common.run.saving import KEPT_CHECKPOINTS
from common.settings.settings import Settings

LEADERS_FILES = ("settings.json", "summary.json", "report.txt", "report.json")


def hold_folder(folder: Path, lock: FolderLock, node: Node, code: str) -> list[str]:
    """Makes the folder, and takes every rank's lock on it; warnings. Every rank must call.

    The leader takes its own first: of two runs that begin at once one gets all. `code` is what
    every rank must run, what user code imports included. Raises UsageError, as FolderLock does.
    """
    _refuse_dangling_link(folder / "checkpoints", node.whose)
    warning = lock.take() if node.world.is_leader else ""
    node.agree("code", code)
    warning = warning if node.world.is_leader else lock.take()
    return [warning] if warning else []


def write_anew(run: Run, lock: FolderLock) -> None:
    """Writes what stands beside the logs, in a folder that was deleted while the run goes on.

    Raises UsageError where another run has begun there.
    """
    run.node.progress.log = None  # which may be another run's
    lock.take()
    run.node.progress.log = run.log.metrics_path
    if run.node.world.is_leader:
        keep_settings(run)
        if run.checkpoints.last is not None and not run.checkpoints.last.exists():
            run.checkpoints.last = None
            run.node.note_saved("")


def prepare_folder(folder: Path, settings: Settings, node: Node, model: nn.Module) -> None:
    """Makes the folder ready to be written, and empty for --resume replace. Every rank must call.

    Raises UsageError where it cannot be written, CheckpointError where the disk cannot take the
    checkpoints of `model`.
    """
    checkpoints = folder / "checkpoints"
    try:
        if settings.resume.replaces:
            _remove_run(folder, node)
        _require_files(folder, node)
        if node.world.is_leader:
            checkpoints.mkdir(exist_ok=True)
            checkpoint_folder.remove_partial_files(checkpoints)
            best = [checkpoints / checkpoint_folder.BEST] * bool(settings.validation.fraction)
            held = checkpoint_folder.up_to_resumed(folder, settings.resume)
            checkpoint_folder.require_space(checkpoints, model, KEPT_CHECKPOINTS + 1 + len(best),
                                            [*held, *best] if held else [])
    except OSError as error:
        raise UsageError(f"{node.whose}the output folder {error.filename or folder} cannot be "
                         f"written: {error.strerror}") from error


def _require_files(folder: Path, node: Node) -> None:
    """Raises UsageError where a folder or a pipe is in the place of a file."""
    names = LEADERS_FILES if node.world.is_leader else ()
    for path in (*log_paths(folder, node.world), *(folder / name for name in names)):
        if path.is_dir() or path.is_fifo():
            raise UsageError(f"{node.whose}{path} is not a file: remove it, or choose another "
                             "--output-dir")


def keep_settings(run: Run) -> None:
    """Writes settings.json: what --settings needs to repeat the run. On the leader.

    These are the settings that its part has, and of several strategies its own; and what it ran on.
    """
    part, _, strategy = run.name.partition("/")
    rows = run.settings.rows()
    settings = {name: value for name, value in run.settings.as_json().items()
                if part in rows[name].parts}
    settings["resume"] = str(run.settings.resume.at_first)
    if strategy:
        settings["sync"] = [str(each) for each in run.settings.sync if each.label == strategy]
    constants = run.checkpoints.constants
    settings[RAN_ON] = {"data": constants["data"],
                        "world_size": run.node.world.size, **constants["ran_on"]}
    with writing(path := run.folder / "settings.json"):
        path.write_text(json.dumps(settings, indent=2) + "\n")


def _refuse_dangling_link(folder: Path, whose: str) -> None:
    """Raises UsageError where `folder` leads through a link to nowhere: to a lost disk, perhaps."""
    for place in (folder, *folder.parents):
        if os.path.islink(place) and not os.path.exists(place):
            raise UsageError(f"{whose}{place} is a link to {place.readlink()}, which is not there: "
                             "mount its disk or make the folder, or remove the link")


def _remove_run(folder: Path, node: Node) -> None:
    """Deletes what a run writes, and nothing else: this rank's logs, and what the leader wrote."""
    for path in log_paths(folder, node.world):
        path.unlink(missing_ok=True)
    if node.world.is_leader:
        for name in LEADERS_FILES:
            (folder / name).unlink(missing_ok=True)
        for path in checkpoint_folder.newest(folder / "checkpoints"):
            path.unlink()
        (folder / "checkpoints" / checkpoint_folder.BEST).unlink(missing_ok=True)
        for tracked in ("tensorboard", "wandb"):
            shutil.rmtree(folder / tracked, ignore_errors=True)
        for path in (folder / "traces").glob("trace_all_*"):
            path.unlink()
    for path in (folder / "traces").glob(f"*_rank{node.world.name}[_.]*"):
        path.unlink()
