"""A run's folder, log, checkpoints and tracker, opened around its training.

    python3 PartOne/main.py --workload digits-vgg11 --resume auto
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from common.cluster.elastic import elastic
from common.cluster.ending import resume_command
from common.cluster.node import Node
from common.core.progress import Position
from common.data.dataset import form_of
from common.data.epoch_plan import EpochPlan
from common.data.loaders import InMemoryLoader, WorkerLoader
from common.model.batch_norm import has_batch_norm
from common.options.workloads import find_workload
from common.run.folder_lock import FolderLock
from common.run.in_memory import kept_in_memory
from common.run.other_runs import log_paths, refuse_other_run, run_name
from common.run.resuming import begin
from common.run.run import Run, ran_on
from common.run.run_folder import hold_folder, write_anew
from common.run.run_log import RunLog
from common.run.save_clock import SaveClock
from common.run.saving import Checkpoints
from common.run.sentinel import Sentinel
from common.run.tracing import create_tracer
from common.run.trackers import create_tracker
from common.settings.resume import Resume
from common.settings.settings import Settings
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
        remarks = warnings + begin(run)
        if run.checkpoints.last is None:
            remarks += _remarks_on(loader.plan, settings, model)
        stack.enter_context(_logged(run, remarks))
        with located(model, lambda: f"rank {node.world.name} at {run.position}",
                     run.state.loss_scale.is_attached), kept_in_memory(run):
            yield run
        log.event("end")
        node.progress.log = None


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
