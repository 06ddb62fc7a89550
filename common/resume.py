"""How a run begins: fresh, resumed or replaced, and never mixed with another in one folder.

    outputs/PartTwo/all-reduce/   logs_rankR.txt  metrics_rankR.jsonl  settings.json
                                  checkpoints/  report.txt  report.json  summary.json
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from common import checkpoint, checkpoint_folder
from common.checkpoint import Position
from common.collectives import broadcast_bytes
from common.convolutions import LIBRARY
from common.epoch_plan import EpochPlan
from common.failures import CheckpointError, UsageError
from common.gradient_sync import GradientSync, KeepLocal
from common.loaders import InMemoryLoader, WorkerLoader
from common.process_group import Node
from common.run import KEPT_CHECKPOINTS, Run, ran_on
from common.run_log import RunLog, Totals
from common.save_clock import SaveClock
from common.sentinel import Sentinel
from common.settings import FIELD_DEFAULTS, Settings, differences
from common.tracing import create_tracer
from common.trackers import create_tracker
from common.weight_average import create_average

LEADERS_FILES = ("settings.json", "summary.json", "report.txt", "report.json")


@contextmanager
def open_run(name: str, settings: Settings, node: Node, loader: InMemoryLoader | WorkerLoader,
             model: nn.Module, optimizer: Optimizer,
             gradient_sync: GradientSync | None = None) -> Iterator[Run]:
    """Opens the output folder `name`, as --resume says: fresh, resumed, or replaced.

    Resuming restores `model`, `optimizer` and what `gradient_sync` remembers, in place. Every rank
    must enter. Raises UsageError when the folder holds a run and must not be touched, or when
    settings or data have changed; CheckpointError when nothing sound is left to resume from. A dry
    run does all this in a temporary folder, after it has looked at the real one.
    """
    _refuse_other_runs(settings.output_dir / name, settings, node)
    memory = gradient_sync or KeepLocal()
    if not settings.dry_run:
        with _opened(name, settings, node, loader, model, optimizer, memory) as run:
            yield run
        return
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        elsewhere = replace(settings, output_dir=Path(folder), resume="no")
        with _opened(name, elsewhere, node, loader, model, optimizer, memory) as run:
            yield run


@contextmanager
def _opened(name: str, settings: Settings, node: Node, loader: InMemoryLoader | WorkerLoader,
            model: nn.Module, optimizer: Optimizer, gradient_sync: GradientSync) -> Iterator[Run]:
    folder, plan, data = settings.output_dir / name, loader.plan, loader.dataset.digest
    node.progress.saved = None
    node.progress.run += 1
    _prepare_folder(folder, settings, node, model)
    source, contents = _find_checkpoint(folder, settings, node)
    position, totals, remarks, last = Position(), Totals(), [], None
    if contents is None:
        for path in _log_paths(folder, node):  # of a run that was lost before its first checkpoint
            path.unlink(missing_ok=True)
    else:
        remarks = _check_settings(contents, settings, data)
        remarks += _restore(contents, source, node, model, optimizer, gradient_sync)
        position, last = Position(*contents["position"]), Path(source)
        totals = _my_totals(contents.get("totals", []), node)
        remarks.append(f"resumed at {position} from {source} (bit-exact: "
                       f"{_exactness(contents, ran_on(name, node, settings, model))})")
    average = create_average(settings, model, (contents or {}).get("average_state_dict", {}))
    node.note_saved(str(last or ""))
    remarks += _left_out(plan)
    text, metrics = _log_paths(folder, node)
    tracker = create_tracker(settings.tracker, folder, node.world.is_leader)
    with RunLog(text, metrics, node.world, position, settings.log_every,
                node.world.size > 1, tracker) as log:
        node.progress.log = metrics
        tracer = create_tracer(settings, plan.iterations, folder, node, log)
        log.begin(world_size=node.world.size, settings=settings.as_json(), position=position,
                  iterations_per_epoch=plan.iterations, ran_on=ran_on(name, node, settings, model))
        for remark in remarks:
            log.note(remark)
        yield Run(name, folder, folder / "checkpoints", settings, node, log, plan.iterations,
                  Sentinel(plan, node, settings.check_every), tracer,
                  SaveClock(name, settings.checkpoint_minutes, node), position, totals, last, data,
                  gradient_sync, average, validation_losses=_losses_so_far(contents, settings))
        log.event("end")
        node.progress.log = None


def _restore(contents: dict[str, Any], source: str, node: Node, model: nn.Module,
             optimizer: Optimizer, gradient_sync: GradientSync) -> list[str]:
    """Gives model, optimiser and synchroniser back what was saved, in place; remarks on losses."""
    checkpoint.restore(contents, source, model, optimizer)
    return _recall(contents.get("rank_state", []), gradient_sync.local_state(optimizer), node)


def _left_out(plan: EpochPlan) -> list[str]:
    """A remark on the samples that no epoch uses, if there are any."""
    if not plan.left_out:
        return []
    return [f"each epoch leaves out a last batch of {plan.left_out} samples, fewer than "
            f"--smallest-batch {plan.smallest_batch}"]


def _log_paths(folder: Path, node: Node) -> tuple[Path, Path]:
    rank = node.world.rank
    return folder / f"logs_rank{rank}.txt", folder / f"metrics_rank{rank}.jsonl"


def _refuse_other_runs(folder: Path, settings: Settings, node: Node) -> None:
    """Raises UsageError when a folder that this command will fill holds another run.

    Part Two looks at all its folders before it trains into the first.
    """
    first = bool(settings.sync) and folder.name == settings.sync[0]
    for name in settings.sync if first else (folder.name,):
        other = folder.parent / name
        if _is_another_run(other, settings.resume) and any(
                path.exists() for path in _log_paths(other, node)):
            raise UsageError(f"{other} already holds a run: continue it with --resume auto, start "
                             "over with --resume replace, or choose another --output-dir")


def _remove_run(folder: Path, node: Node) -> None:
    """Deletes what a run writes, and nothing else: this rank's logs, and what the leader wrote."""
    for path in _log_paths(folder, node):
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


def _prepare_folder(folder: Path, settings: Settings, node: Node, model: nn.Module) -> None:
    try:
        if settings.resume == "replace":
            _remove_run(folder, node)
        folder.mkdir(parents=True, exist_ok=True)
        if node.world.is_leader:
            (folder / "settings.json").write_text(json.dumps(settings.as_json(), indent=2) + "\n")
            checkpoint_folder.remove_partial_files(folder / "checkpoints")
            checkpoint_folder.require_space(folder, model, KEPT_CHECKPOINTS + 1
                                     + bool(settings.validation_fraction),
                                            1 + bool(settings.weight_average))
    except OSError as error:
        raise UsageError(f"the output folder {folder} cannot be written: {error.strerror}") \
            from error


def _is_another_run(folder: Path, resume: str) -> bool:
    """Whether what is about to start must not be mixed with what the folder holds."""
    if resume in ("auto", "replace"):
        return False
    return resume == "no" or folder.resolve() not in Path(resume).resolve().parents


def _find_checkpoint(folder: Path, settings: Settings,
                     node: Node) -> tuple[str, dict[str, Any] | None]:
    """Where the leader found a sound checkpoint, and its contents; on every rank."""
    path, data = Path(), b""
    if node.world.is_leader:
        path, data = _leaders_checkpoint(folder, settings.resume)
    source = broadcast_bytes(str(path).encode(), node.device).decode()
    data = broadcast_bytes(data, node.device)
    return source, checkpoint.parse(data, Path(source)) if data else None


def _leaders_checkpoint(folder: Path, resume: str) -> tuple[Path, bytes]:
    complaint: CheckpointError | None = None
    for path in checkpoint_folder.to_resume(folder, resume):
        try:
            data = checkpoint.read_bytes(path)
            checkpoint.parse(data, path)
            return path, data
        except CheckpointError as error:
            print(f"warning: {error}", flush=True)
            complaint = error
    if complaint is not None:
        raise complaint
    return Path(), b""


def _check_settings(contents: dict[str, Any], settings: Settings, data: str) -> list[str]:
    """Remarks on accepted changes. Raises UsageError for changes that were not accepted."""
    before = {**FIELD_DEFAULTS, **contents.get("settings", {}), "data": contents.get("data")}
    now = {**settings.trajectory(), "data": data}
    changed = [f"{name} was {before.get(name)} and is {now[name]}"
               for name in differences({key: before.get(key) for key in now}, now)]
    if changed and not settings.accept_changes:
        raise UsageError("the run to resume had other settings: " + "; ".join(changed) +
                         ". Give the old ones, or --accept-changes")
    return [f"continuing with changed settings: {change}" for change in changed]


def _losses_so_far(contents: dict[str, Any] | None, settings: Settings) -> list[float]:
    """The history that early stopping goes by; none where nothing is held out any more."""
    return list((contents or {}).get("validation_losses", [])) * bool(settings.validation_fraction)


def _my_totals(rows: list[list[float]], node: Node) -> Totals:
    """This rank's sums; on another world size the leader carries them all."""
    if len(rows) == node.world.size:
        return Totals(*rows[node.world.rank])
    if rows and node.world.is_leader:
        return Totals(*(sum(column) for column in zip(*rows, strict=True)))
    return Totals()


def _recall(saved: list[list[Tensor]], remembered: list[Tensor], node: Node) -> list[str]:
    """Gives the synchroniser back what it remembered on this rank; a remark where it cannot be."""
    if len(saved) != len(remembered) or any(len(rows) != node.world.size for rows in saved):
        return ["what the synchroniser remembered is lost: the number of ranks or buckets, or the "
                "strategy, changed"]
    for tensor, rows in zip(remembered, saved, strict=True):
        tensor.copy_(rows[node.world.rank])
    return []


def _exactness(contents: dict[str, Any], now: dict[str, Any]) -> str:
    defaults = {name: FIELD_DEFAULTS[name] for name in ("accumulate", "bucket_mb")}
    defaults["convolutions"] = LIBRARY
    before = {**defaults, **contents.get("ran_on", {})}
    changed = [f"{name} was {before.get(name)} and is {now.get(name)}"
               for name in differences(before, now)]
    if changed:
        return "no, because " + ", ".join(changed)
    return "yes" if now["device"] == "cpu" else "not promised on a GPU"
