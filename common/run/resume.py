"""How a run begins: fresh, or as its checkpoint says, bit for bit where that can be.

    python3 PartOne/main.py --workload digits-vgg11 --resume auto
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from common.cluster.process_group import Node
from common.core.collectives import broadcast_bytes
from common.core.failures import CheckpointError, UsageError
from common.core.progress import Position
from common.core.setting_row import differences
from common.core.settings import Settings
from common.data.epoch_plan import EpochPlan
from common.data.loaders import InMemoryLoader, WorkerLoader
from common.run import checkpoint, checkpoint_folder
from common.run.checkpoints import Checkpoints
from common.run.other_runs import log_paths, refuse_other_run, run_name
from common.run.run import Run, ran_on
from common.run.run_folder import prepare_folder
from common.run.run_log import RunLog, Totals
from common.run.save_clock import SaveClock
from common.run.sentinel import Sentinel
from common.run.state import State
from common.run.tracing import create_tracer
from common.run.trackers import create_tracker
from common.step.gradient_check import located
from common.step.gradient_sync import GradientSync


@contextmanager
def open_run(part: str, strategy: str, settings: Settings, node: Node,
             loader: InMemoryLoader | WorkerLoader, model: nn.Module, optimizer: Optimizer,
             gradient_sync: GradientSync) -> Iterator[Run]:
    """Opens the folder of a part's run, as --resume says: fresh, resumed, or replaced.

    Resuming restores `model`, `optimizer` and the state of `gradient_sync`, in place. Every rank
    must enter. Raises UsageError when the folder holds a run and must not be touched, or when
    settings or data have changed; CheckpointError when nothing sound is left to resume from;
    NonFiniteLoss for a NotFinite within. A dry run does all this in a temporary folder, after it
    has looked at the real one.
    """
    name = run_name(part, strategy)
    refuse_other_run(settings.output_dir / name, settings, node.world)
    with ExitStack() as stack:
        if settings.dry_run:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dry-run-"))
            settings = replace(settings, output_dir=Path(folder), resume="no")
        begin = _begin(settings.output_dir / name, settings, node, loader, model, optimizer,
                       gradient_sync, ran_on(name, node, settings, model))
        log = stack.enter_context(_open_log(settings.output_dir / name, settings, node, loader.plan,
                                            begin))
        run = _create_run(name, settings, node, loader, model, optimizer, gradient_sync, begin, log)
        with located(model, lambda: f"rank {node.world.rank} at {run.position}"):
            yield run
        log.event("end")
        node.progress.log = None


class Begin(NamedTuple):
    """Where a run begins, the checkpoint it comes from, if any, and what is to be said of it."""

    state: State
    checkpoint: Path | None
    remarks: list[str]
    ran_on: dict[str, Any]


def _begin(folder: Path, settings: Settings, node: Node, loader: InMemoryLoader | WorkerLoader,
           model: nn.Module, optimizer: Optimizer, gradient_sync: GradientSync,
           now: dict[str, Any]) -> Begin:
    """Makes the folder ready, and restores what is to be resumed, in place."""
    node.progress.saved = None
    node.progress.run += 1
    prepare_folder(folder, settings, node, model)
    source, contents = _find_checkpoint(folder, settings, node)
    if contents is None:
        for path in log_paths(folder, node.world):  # of a run lost before its first checkpoint
            path.unlink(missing_ok=True)
        return Begin(State(), None, [], now)
    remarks = _check_settings(contents, settings, loader.dataset.digest)
    checkpoint.restore(contents, source, model, optimizer)
    remarks += _restore_ranks(contents.get("rank_state", []), gradient_sync.state(), node)
    state = State(Position(*contents["position"]), _my_totals(contents.get("totals", []), node),
                  list(contents.get("validation_losses", [])) * bool(settings.validation.fraction))
    remarks.append(f"resumed at {state.position} from {source} (bit-exact: "
                   f"{_exactness(contents, now)})")
    return Begin(state, Path(source), remarks, now)


@contextmanager
def _open_log(folder: Path, settings: Settings, node: Node, plan: EpochPlan,
              begin: Begin) -> Iterator[RunLog]:
    node.note_saved(str(begin.checkpoint or ""))
    text, metrics = log_paths(folder, node.world)
    tracker = create_tracker(settings.tracker, folder, node.world.is_leader)
    with RunLog(text, metrics, node.world, begin.state.position, settings.log_every,
                node.world.size > 1, tracker) as log:
        node.progress.log = metrics
        log.begin(world_size=node.world.size, settings=settings.as_json(),
                  position=begin.state.position, iterations_per_epoch=plan.iterations,
                  ran_on=begin.ran_on)
        for remark in begin.remarks + _dropped(plan):
            log.note(remark)
        yield log


def _create_run(name: str, settings: Settings, node: Node, loader: InMemoryLoader | WorkerLoader,
                model: nn.Module, optimizer: Optimizer, gradient_sync: GradientSync, begin: Begin,
                log: RunLog) -> Run:
    folder, plan = settings.output_dir / name, loader.plan
    constants = {"settings": settings.as_json(), "ran_on": begin.ran_on,
                 "data": loader.dataset.digest}
    return Run(
        name=name, settings=settings, node=node, model=model, optimizer=optimizer,
        gradient_sync=gradient_sync, log=log, iterations_per_epoch=plan.iterations,
        checkpoints=Checkpoints(
            folder / "checkpoints", node, log, constants, settings.checkpoint_every.iterations,
            SaveClock(name, settings.checkpoint_every.minutes, node), last=begin.checkpoint),
        sentinel=Sentinel(model, plan, node, settings.check_every),
        tracer=create_tracer(settings, plan.iterations, folder, node, log), state=begin.state)


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
        path, data = _leaders_checkpoint(folder, settings.resume_from)
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
    changed = settings.changes_since(contents.get("settings", {}))
    if contents.get("data") != data:
        changed.append(f"data was {contents.get('data')} and is {data}")
    if changed and not settings.accepts_changes:
        raise UsageError("the run to resume had other settings: " + "; ".join(changed) +
                         f". Give the old ones, or --resume {settings.resume}:changed")
    return [f"continuing with changed settings: {change}" for change in changed]


def _my_totals(rows: list[list[float]], node: Node) -> Totals:
    """This rank's sums; on another world size the leader carries them all."""
    if len(rows) == node.world.size:
        return Totals(*rows[node.world.rank])
    if rows and node.world.is_leader:
        return Totals(*(sum(column) for column in zip(*rows, strict=True)))
    return Totals()


def _restore_ranks(saved: list[list[Tensor]], state: list[Tensor], node: Node) -> list[str]:
    """Gives the strategy back its state on this rank, in place; a remark where it cannot be."""
    if len(saved) != len(state) or any(len(rows) != node.world.size for rows in saved):
        return ["the strategy's state is lost: the number of ranks or buckets, or the strategy, "
                "changed"]
    for tensor, rows in zip(state, saved, strict=True):
        tensor.copy_(rows[node.world.rank])
    return []


def _exactness(contents: dict[str, Any], now: dict[str, Any]) -> str:
    before = contents.get("ran_on", {})
    changed = [f"{name} was {before.get(name)} and is {now.get(name)}"
               for name in differences(before, now)]
    if changed:
        return "no, because " + ", ".join(changed)
    return "yes" if now["device"] == "cpu" else "not promised on a GPU"
