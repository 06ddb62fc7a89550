"""How a run begins: fresh, or as its checkpoint says, bit for bit where that can be.

    python3 PartOne/main.py --workload digits-vgg11 --resume auto
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from common.cluster.process_group import Node
from common.core.collectives import broadcast_bytes
from common.core.failures import CheckpointError, UsageError
from common.core.progress import Position
from common.core.settings import FIELD_DEFAULTS, Settings, differences
from common.data.epoch_plan import EpochPlan
from common.data.loaders import InMemoryLoader, WorkerLoader
from common.model.convolutions import LIBRARY
from common.run import checkpoint, checkpoint_folder
from common.run.other_runs import log_paths, refuse_other_run
from common.run.run import Run, ran_on
from common.run.run_folder import prepare_folder
from common.run.run_log import RunLog, Totals
from common.run.save_clock import SaveClock
from common.run.sentinel import Sentinel
from common.run.tracing import create_tracer
from common.run.trackers import create_tracker
from common.step.gradient_sync import GradientSync, KeepLocal


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
    refuse_other_run(settings.output_dir / name, settings, node.world)
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
    prepare_folder(folder, settings, node, model)
    source, contents = _find_checkpoint(folder, settings, node)
    position, totals, remarks, last = Position(), Totals(), [], None
    if contents is None:
        for path in log_paths(folder, node.world):  # of a run lost before its first checkpoint
            path.unlink(missing_ok=True)
    else:
        remarks = _check_settings(contents, settings, data)
        remarks += _restore(contents, source, node, model, optimizer, gradient_sync)
        position, last = Position(*contents["position"]), Path(source)
        totals = _my_totals(contents.get("totals", []), node)
        remarks.append(f"resumed at {position} from {source} (bit-exact: "
                       f"{_exactness(contents, ran_on(name, node, settings, model))})")
    node.note_saved(str(last or ""))
    remarks += _dropped(plan)
    text, metrics = log_paths(folder, node.world)
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
                  gradient_sync, validation_losses=_losses_so_far(contents, settings))
        log.event("end")
        node.progress.log = None


def _restore(contents: dict[str, Any], source: str, node: Node, model: nn.Module,
             optimizer: Optimizer, gradient_sync: GradientSync) -> list[str]:
    """Gives model, optimiser and synchroniser back what was saved, in place; remarks on losses."""
    checkpoint.restore(contents, source, model, optimizer)
    return _recall(contents.get("rank_state", []), gradient_sync.local_state(optimizer), node)


def _dropped(plan: EpochPlan) -> list[str]:
    """A remark on the samples that no epoch uses, if there are any."""
    if not plan.dropped:
        return []
    return [f"each epoch drops a last batch of {plan.dropped} samples, fewer than "
            f"{plan.smallest_batch}"]


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
