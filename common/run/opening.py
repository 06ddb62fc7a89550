"""How a run begins: fresh, or as its checkpoint says, bit for bit where that can be.

    python3 PartOne/main.py --workload digits-vgg11 --resume auto
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from common.arithmetic.products import NATIVE, PORTABLE
from common.cluster.elastic import elastic
from common.cluster.ending import resume_command
from common.cluster.node import Node
from common.core.collectives import broadcast_bytes, gather_bytes
from common.core.failures import CheckpointError, UsageError, writing
from common.core.progress import Position
from common.core.visible import lookalikes
from common.data.dataset import form_of, is_repeatable
from common.data.epoch_plan import EpochPlan
from common.data.loaders import InMemoryLoader, WorkerLoader
from common.model.batch_norm import has_batch_norm
from common.options.workloads import find_workload
from common.run import checkpoint_file, checkpoint_folder, checkpoint_plain, in_memory
from common.run.folder_lock import FolderLock
from common.run.in_memory import kept_in_memory
from common.run.other_runs import log_paths, refuse_other_run, run_name
from common.run.run import Run, ran_on
from common.run.run_end import limits
from common.run.run_folder import hold_folder, keep_settings, prepare_folder, write_anew
from common.run.run_log import RunLog
from common.run.save_clock import SaveClock
from common.run.saving import Checkpoints
from common.run.sentinel import Sentinel
from common.run.tracing import create_tracer
from common.run.trackers import create_tracker
from common.settings.resume import Resume
from common.settings.row import differences
from common.settings.settings import Settings
from common.settings.user_code import Place
from common.step.gradient_check import located
from common.step.gradient_sync import GradientSync

# After fewer steps the running averages of batch norm still hold more than 0.9^50 = 0.5 % of what
# they began with.
FEW_STEPS = 50


@contextmanager
def open_run(part: str, strategy: str, settings: Settings, node: Node,
             loader: InMemoryLoader | WorkerLoader, model: nn.Module, optimizer: Optimizer,
             gradient_sync: GradientSync,
             saving: type[Checkpoints] = Checkpoints) -> Iterator[Run]:
    """Opens the folder of a part's run, as --resume says: fresh, resumed, or replaced.

    Resuming restores `model`, `optimizer` and the state of `gradient_sync`, in place; `saving`
    writes the checkpoints. Every rank must enter. Raises UsageError when the folder holds a run and
    must not be touched, or when settings or data have changed; CheckpointError when nothing sound
    is left to resume from; NonFiniteLoss for a NotFinite within. A dry run does all this in a
    temporary folder, after it has looked at the real one.
    """
    name = run_name(part, strategy)
    refuse_other_run(settings.output_dir / name, settings, node.world)
    with ExitStack() as stack:
        if settings.dry_run:
            passing = stack.enter_context(tempfile.TemporaryDirectory(prefix="dry-run-"))
            settings = replace(settings, output_dir=Path(passing), resume=Resume())
        folder, every = settings.output_dir / name, settings.checkpoint_every
        log = RunLog(*log_paths(folder, node.world), node.world, log_every=settings.log_every,
                     distributed=node.world.size > 1,
                     metric=find_workload(settings.workload).metric)
        constants = {"settings": settings.as_json(), "data": loader.dataset.digest,
                     "samples": form_of(loader.dataset),
                     "ran_on": (conditions := ran_on(name, node, settings, model))}
        lock = stack.enter_context(FolderLock(folder, node.world.name, node.whose))
        warnings = hold_folder(folder, lock, node, conditions["code"])
        refuse_other_run(folder, settings, node.world)  # one that ended while this one waited
        checkpoints = saving(folder / "checkpoints", node, log, constants, every.iterations,
                             SaveClock(name, every.minutes, node))
        run = Run(name, settings, node, model, optimizer, gradient_sync, log, checkpoints,
                  loader.plan.iterations,
                  Sentinel(model, loader.plan, node, settings.check_every, settings.virtual_nodes),
                  create_tracer(settings, loader.plan.iterations, folder, node, log))
        log.when_lost = partial(write_anew, run, lock)
        remarks = warnings + _begin(run)
        if run.checkpoints.last is None:
            remarks += _remarks_on(loader.plan, settings, model)
        stack.enter_context(_logged(run, remarks))
        with located(model, lambda: f"rank {node.world.name} at {run.position}",
                     run.state.loss_scale.is_attached), kept_in_memory(run):
            yield run
        log.event("end")
        node.progress.log = None


def _begin(run: Run) -> list[str]:
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
    remarks.append(f"resumed at {run.position} from {source} (bit-exact: {exactness})")
    if run.is_done():
        remarks.append(f"nothing is left to train with {limits(settings)}")
    return remarks


@contextmanager
def _logged(run: Run, remarks: list[str]) -> Iterator[None]:
    """Around the run: opens its log and its tracker."""
    node, settings, log = run.node, run.settings, run.log
    node.note_saved(str(run.checkpoints.last or ""))
    log.start = run.position
    if run.ends_late():  # its lines may be there, and come again
        log.start = Position(max(1, run.position.epoch - (run.position.iteration == 0)),
                             sys.maxsize, run.position.step)
    log.tracker = create_tracker(settings.tracker, run.folder,
                                 node.world.is_leader and not settings.dry_run)
    with log:
        node.progress.log = log.metrics_path
        log.begin(world_size=node.world.size, settings=settings.as_json(), position=run.position,
                  iterations_per_epoch=run.iterations_per_epoch,
                  ran_on=run.checkpoints.constants["ran_on"],
                  data=run.checkpoints.constants["data"],
                  has_batch_norm=has_batch_norm(run.model),
                  members=[each.launched for each in node.ranks],
                  resume=resume_command(sys.argv, os.environ))
        if (member := elastic()) and (change := member.change()) and member.has_lost:
            log.event("regrouped", **change._asdict())
            log.note(f"going on at {run.position} with {node.world.size} ranks after "
                     f"{change.seconds:.2f} s: {change}")
        for remark in remarks:
            log.note(remark)
        if run.checkpoints.last is not None:
            run.checkpoints.finish_save(run.checkpoints.last, run.position)
        yield


def _remarks_on(plan: EpochPlan, settings: Settings, model: nn.Module) -> list[str]:
    """Remarks on few steps in all, samples that no epoch uses, and a batch larger than an epoch."""
    remarks, steps = [], settings.epochs * plan.iterations
    if steps < FEW_STEPS and not settings.max_iterations and has_batch_norm(model):
        remarks.append(f"{steps} step{'s' * (steps > 1)} in all are few: the running averages of "
                       "batch norm, by which the model is tested, take about "
                       f"{FEW_STEPS}. A smaller --batch-size than {plan.batch_size}, or more "
                       f"--epochs than {settings.epochs}, makes them more")
    if plan.batch_size > plan.samples:
        remarks.append(f"--batch-size {plan.batch_size} is more than the {plan.samples} training "
                       "samples, so every step takes all of them")
    elif plan.dropped:
        remarks.append(f"each epoch drops a last batch of {plan.dropped} "
                       f"sample{'s' * (plan.dropped > 1)}, fewer than {plan.smallest_batch}")
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
