"""One run in its output folder: where it stands, what it logs, when it saves, how it resumes.

    outputs/PartTwo/all-reduce/   logs_rankR.txt  metrics_rankR.jsonl  settings.json
                                  checkpoints/  report.txt  report.json  summary.json
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from common import checkpoint
from common.checkpoint import Position
from common.collectives import broadcast_bytes, gather_rows, share_leaders_buffers
from common.epoch_plan import EpochPlan, mix
from common.failures import CheckpointError, UsageError
from common.precision import Precision
from common.process_group import Node
from common.rendezvous import versions
from common.run_log import RunLog, Step, Totals
from common.settings import Settings, differences

KEPT_CHECKPOINTS = 2


@dataclass
class Run:
    """Where a run stands and what it leaves behind. Made by `open_run`; every rank has one.

    `position` is the next batch to train on, `totals` this rank's sums over the epoch so far.
    """

    folder: Path
    checkpoint_dir: Path
    settings: Settings
    node: Node
    log: RunLog
    iterations_per_epoch: int
    position: Position = Position()
    totals: Totals = field(default_factory=Totals)
    last_checkpoint: Path | None = None

    @property
    def precision(self) -> Precision:
        return Precision(self.settings.precision)

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, the one that was interrupted first."""
        while not self._is_over():
            self.log.open_bar(self.position.epoch, self.position.iteration,
                              self.iterations_per_epoch)
            yield self.position.epoch

    def iterations(self) -> Iterator[int]:
        """The iterations that are left of the current epoch; sets the random seed for each.

        Random numbers drawn in a step (dropout) depend on seed, position and rank alone, so a
        resumed run draws what the uninterrupted one drew.
        """
        epoch = self.position.epoch
        while self.position.epoch == epoch and not self._is_over():
            here, progress = self.position, self.node.progress
            progress.epoch, progress.iteration = here.epoch, here.iteration
            torch.manual_seed(mix(self.settings.seed, here.epoch, here.iteration,
                                  self.node.world.rank))
            yield here.iteration
            progress.settled = True

    def _is_over(self) -> bool:
        limit = self.settings.max_iterations
        return (self.position.epoch > self.settings.epochs
                or (limit is not None and self.position.step >= limit))

    def finish_step(self, step: Step, model: nn.Module, optimizer: Optimizer) -> None:
        """Logs the step, moves on to the next, and saves when a checkpoint is due."""
        self.log.step(step)
        self.totals.add(step.loss, step.correct, step.samples)
        self.position = self.position.after_one_more(self.iterations_per_epoch)
        every = self.settings.checkpoint_every
        if every and self.position.step % every == 0 and self.position.iteration:
            self.save(model, optimizer, self._gathered_totals())

    def finish_epoch(self, epoch: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Logs the epoch's means over all ranks and saves. Every rank must call it."""
        rows = self._gathered_totals()
        totals = Totals(*(sum(column) for column in zip(*rows, strict=True)))
        self.log.epoch(epoch, totals)
        if self.position.epoch > epoch:
            self.totals, rows = Totals(), []
        self.save(model, optimizer, rows, totals.means()[0])

    def _gathered_totals(self) -> list[list[float]]:
        row = torch.tensor([self.totals.loss, self.totals.correct, self.totals.samples],
                           dtype=torch.float64, device=self.node.device)
        return gather_rows(row).tolist()

    def save(self, model: nn.Module, optimizer: Optimizer, totals: list[list[float]],
             loss: float = float("nan")) -> None:
        """Every rank must call it; the leader writes, and keeps the last two checkpoints."""
        self.node.progress.phase = "saving"
        share_leaders_buffers(model)
        path = self.checkpoint_dir / checkpoint.file_name(self.position)
        if self.node.world.is_leader:
            checkpoint.write(path, checkpoint.pack(
                model, optimizer, self.position, loss, totals=totals,
                settings=self.settings.as_json(), ran_on=ran_on(self.settings, self.node)))
            for old in checkpoint.newest(path.parent)[KEPT_CHECKPOINTS:]:
                old.unlink()
        self.last_checkpoint = path


def ran_on(settings: Settings, node: Node) -> dict[str, Any]:
    """What must stay the same for a resumed run to be bit for bit the same run."""
    return {"world_size": node.world.size, "sync": list(settings.sync), "threads": node.threads,
            "device": node.device.type, **versions()}


@contextmanager
def open_run(name: str, settings: Settings, node: Node, plan: EpochPlan,
             model: nn.Module, optimizer: Optimizer) -> Iterator[Run]:
    """Opens the output folder `name`, as --resume says: fresh, resumed, or replaced.

    Resuming restores `model` and `optimizer`, in place. Every rank must enter. Raises UsageError
    when the folder holds a run and must not be touched, or when the settings have changed;
    CheckpointError when nothing sound is left to resume from.
    """
    folder = settings.output_dir / name
    _prepare_folder(folder, settings, node)
    source, contents = _find_checkpoint(folder, settings, node)
    position, totals, remarks = Position(), Totals(), []
    if contents is not None:
        remarks = _check_settings(contents, settings)
        checkpoint.restore(contents, source, model, optimizer)
        position = Position(*contents["position"])
        totals = _my_totals(contents["totals"], node)
        remarks.append(f"resumed at {position} from {source} "
                       f"(bit-exact: {_exactness(contents['ran_on'], settings, node)})")
    if plan.left_out:
        remarks.append(f"each epoch leaves out a last batch of {plan.left_out} samples, fewer than "
                       f"--smallest-batch {settings.smallest_batch}")
    text, metrics = _log_paths(folder, node)
    with RunLog(text, metrics, node.world, position, settings.log_every,
                node.world.size > 1) as log:
        log.event("start", world_size=node.world.size, settings=settings.as_json(),
                  ran_on=ran_on(settings, node))
        for remark in remarks:
            log.note(remark)
        yield Run(folder, folder / "checkpoints", settings, node, log, plan.iterations, position,
                  totals)
        log.event("end")


def _log_paths(folder: Path, node: Node) -> tuple[Path, Path]:
    rank = node.world.rank
    return folder / f"logs_rank{rank}.txt", folder / f"metrics_rank{rank}.jsonl"


def _prepare_folder(folder: Path, settings: Settings, node: Node) -> None:
    mine = _log_paths(folder, node)
    if settings.resume == "replace" and node.world.is_leader:
        shutil.rmtree(folder, ignore_errors=True)
    elif settings.resume == "replace":
        for path in mine:
            path.unlink(missing_ok=True)
    elif settings.resume == "no" and any(path.exists() for path in mine):
        raise UsageError(f"{folder} already holds a run: continue it with --resume auto, start "
                         "over with --resume replace, or choose another --output-dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if node.world.is_leader:
            (folder / "settings.json").write_text(json.dumps(settings.as_json(), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"the output folder {folder} cannot be written: {error.strerror}") \
            from error


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
    if resume in ("no", "replace"):
        return Path(), b""
    candidates = (checkpoint.newest(folder / "checkpoints") if resume == "auto"
                  else [Path(resume)])
    complaint: CheckpointError | None = None
    for path in candidates:
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


def _check_settings(contents: dict[str, Any], settings: Settings) -> list[str]:
    """Remarks on accepted changes. Raises UsageError for changes that were not accepted."""
    before, now = contents["settings"], settings.trajectory()
    changed = [f"{name} was {before.get(name)} and is {now[name]}"
               for name in differences({key: before.get(key) for key in now}, now)]
    if changed and not settings.accept_changes:
        raise UsageError("the run to resume had other settings: " + "; ".join(changed) +
                         ". Give the old ones, or --accept-changes")
    return [f"continuing with changed settings: {change}" for change in changed]


def _my_totals(rows: list[list[float]], node: Node) -> Totals:
    """This rank's sums; on another world size the leader carries them all."""
    if len(rows) == node.world.size:
        return Totals(*rows[node.world.rank])
    if rows and node.world.is_leader:
        return Totals(*(sum(column) for column in zip(*rows, strict=True)))
    return Totals()


def _exactness(before: dict[str, Any], settings: Settings, node: Node) -> str:
    now = ran_on(settings, node)
    changed = [f"{name} was {before.get(name)} and is {now[name]}"
               for name in differences(before, now)]
    return "no, because " + ", ".join(changed) if changed else "yes"
