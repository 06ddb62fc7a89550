"""How a run begins: fresh, or as its checkpoint or its ranks' memory says, bit for bit if it can.

    python3 PartOne/main.py --workload digits-vgg11 --resume auto
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from common.arithmetic.products import NATIVE, PORTABLE
from common.cluster.node import Node
from common.core.collectives import broadcast_bytes, gather_bytes
from common.core.failures import CheckpointError, UsageError, writing
from common.core.visible import lookalikes
from common.data.dataset import is_repeatable
from common.run import checkpoint_file, checkpoint_folder, checkpoint_plain, in_memory
from common.run.other_runs import log_paths
from common.run.run import Run
from common.run.run_end import limits
from common.run.run_folder import keep_settings, prepare_folder
from common.settings.resume import Resume
from common.settings.row import differences
from common.settings.settings import Settings
from common.settings.user_code import Place


def begin(run: Run) -> list[str]:
    """Makes the folder ready, and restores what is to be resumed, in place; remarks on that."""
    run.node.progress.saved = None
    run.node.progress.run += 1
    prepare_folder(run.folder, run.settings, run.node, run.model)
    contents, rank = in_memory.find(run.name, run.node)
    if contents is not None:
        return _go_on(run, contents, rank)
    source, contents = _find_checkpoint(run.folder, run.settings, run.node)
    if contents is None and run.settings.resume.is_auto:
        _refuse_anothers_folder(run.folder, run.node)
    if contents is None:  # logs of a run that was lost before its first checkpoint
        for path in log_paths(run.folder, run.node.world):
            with writing(path):
                path.unlink(missing_ok=True)
    remarks = [] if contents is None else _restore(run, contents, source)
    if run.node.world.is_leader:
        run.checkpoints.leave_other_line(run.state, run.settings)
        keep_settings(run)
    return remarks


def _go_on(run: Run, contents: dict[str, Any], rank: str) -> list[str]:
    """Goes on with what `rank` has kept in memory."""
    source = Path(f"the memory of {rank}")
    checkpoint_file.restore(contents, source, run.model, run.optimizer)
    run.state.restore(contents, run.node.world.is_leader, bool(run.settings.validation.fraction))
    if run.node.world.is_leader:
        keep_settings(run)
    return []


def _restore(run: Run, contents: dict[str, Any], source: Path) -> list[str]:
    settings, constants = run.settings, run.checkpoints.constants
    remarks = checkpoint_plain.remarks_on(contents, source)
    if "position" in contents:
        remarks += _check_settings(contents, settings, constants)
    else:
        contents = {**contents, "position": checkpoint_plain.position_after(
            contents, source, run.iterations_per_epoch)}
    checkpoint_file.restore(contents, source, run.model, run.optimizer)
    remarks += _restore_ranks(contents.get("rank_state", []), run.gradient_sync.state(), run.node)
    run.state.restore(contents, run.node.world.is_leader, bool(settings.validation.fraction))
    run.checkpoints.last = source
    exactness = (_exactness(_ran_on(contents), constants["ran_on"])
                 if is_repeatable(constants["data"]) else "no, because the samples are drawn anew")
    left = f"; nothing is left to train with {limits(settings)}" if run.is_done() else ""
    remarks.append(f"resumed at {run.position} from {source} (bit-exact: {exactness}){left}")
    return remarks


def _find_checkpoint(folder: Path, settings: Settings,
                     node: Node) -> tuple[Path, dict[str, Any] | None]:
    """Where the leader found a sound checkpoint, and its contents; on every rank."""
    path, data = Path(), b""
    if node.world.is_leader:
        path, data = _leaders_checkpoint(folder, settings.resume)
    source = Path(os.fsdecode(broadcast_bytes(os.fsencode(path), node.device)))
    data = broadcast_bytes(data, node.device)
    return source, checkpoint_file.parse(data, source) if data else None


def _leaders_checkpoint(folder: Path, resume: Resume) -> tuple[Path, bytes]:
    complaint: CheckpointError | None = None
    for path in checkpoint_folder.to_resume(folder, resume):
        try:
            data = checkpoint_file.read_bytes(path)
            if not checkpoint_file.parse(data, path)["sealed"] and path != Path(resume.file):
                raise CheckpointError(f"{path} carries no seal, so no run wrote it here: --resume "
                                      "auto leaves it alone, and --resume FILE takes it")
            return path, data
        except CheckpointError as error:
            print(f"warning: {error}", flush=True)
            complaint = error
    if complaint is not None:
        raise complaint
    return Path(), b""


def _refuse_anothers_folder(folder: Path, node: Node) -> None:
    """Raises UsageError where another rank's disk has checkpoints, and the leader's has none.

    Then nodes have changed their ranks since the run began, or a disk its node.
    """
    newest = next((path.name for path in checkpoint_folder.newest(folder / "checkpoints")), "")
    names = gather_bytes(newest.encode(), node.device)
    for other, name in enumerate(names):
        if name:
            raise UsageError(
                f"{node.ranks[0]} has nothing to resume in {folder}, but {node.ranks[other]} has "
                f"{name.decode()} in its own: give each node the rank that it had, copy the "
                "checkpoints to rank 0, or choose another --output-dir")


def _check_settings(contents: dict[str, Any], settings: Settings,
                    now: dict[str, Any]) -> list[str]:
    """Remarks on accepted changes. Raises UsageError for changes that were not accepted.

    On virtual nodes other versions or convolutions are changes too. Another processor or other
    code only draws a remark: a lost node may have no like, and most changes of code change no bit.
    """
    changed = settings.changes_since(contents.get("settings", {}))
    if contents.get("data") != now["data"]:
        changed.append(_change_of_data(contents.get("samples", {}), now.get("samples", {}),
                                       bool(Place.parse(settings.workload))))
    if settings.virtual_nodes:
        changed += _changes(_ran_on(contents), now["ran_on"],
                            but=("threads", "instructions", "products", "code"))
    if changed and not settings.resume.accepts_changes:
        accepting = replace(settings.resume, accepts_changes=True)
        raise UsageError("the run to resume had other settings: " + "; ".join(changed) +
                         f". Give the old ones, or --resume {accepting}")
    return [f"continuing with changed settings: {change}" for change in changed]


def _change_of_data(before: dict[str, Any], now: dict[str, Any],
                    is_own: bool = False) -> str:
    """Says what is known of how the training data have changed; both are what form_of returned.

    `is_own` says that they are of a user's own workload.
    """
    classes, names = (set(map(str, each.get("classes", ()))) for each in (before, now))
    changes = [f"class {name} is {fate}" for each, fate in (
        (classes - names, "gone"), (names - classes, "new")) for name in sorted(each)]
    then, today = before.get("count"), now.get("count")
    if type(then) is int and then != today:
        changes.append(f"the {then:,} training samples are {today:,} now")
    return ", ".join(changes) + lookalikes(sorted(names), classes) if changes else (
        "the contents of the data have changed" + ", or load draws them from a generator without a "
        "seed, as default_rng()" * is_own)


def _ran_on(contents: dict[str, Any]) -> dict[str, Any]:
    """The conditions of the run that wrote a checkpoint; an older one pooled first, natively."""
    ran_on = contents.get("ran_on", {})
    return {"pooling": "first", "arithmetic": NATIVE, **ran_on} if ran_on else {}


def _restore_ranks(saved: list[list[Tensor]], state: list[Tensor], node: Node) -> list[str]:
    """Gives the strategy back its state on this rank, in place; a remark where it cannot be."""
    forms = [[(each.shape, each.dtype)] * node.world.size for each in state]
    if [[(row.shape, row.dtype) for row in rows] for rows in saved] != forms:
        return ["the strategy's state is lost: the number of ranks, the strategy, its buckets or "
                "its precision changed"]
    for tensor, rows in zip(state, saved, strict=True):
        tensor.copy_(rows[node.world.rank])
    return []


def _changes(before: dict[str, Any], now: dict[str, Any], but: Sequence[str] = ()) -> list[str]:
    if before.get("arithmetic") == now.get("arithmetic") == PORTABLE:  # these change no bit
        but = (*but, "threads", "instructions", "products")
    return [f"{name} was {before.get(name)} and is {now.get(name)}"
            for name in differences(before, now) if name not in but]


def _exactness(before: dict[str, Any], now: dict[str, Any]) -> str:
    if not before:
        return "no, because the file does not say what it was trained with"
    if changed := _changes(before, now, but=("code",)):
        return "no, because " + ", ".join(changed)
    if changed := _changes(before, now):
        return f"unknown, because {changed[0]}"
    return "yes" if now["device"] == "cpu" else "not promised on a GPU"
