"""The course's documented functions: its names and parameter orders, this project's code.

    .venv/bin/torchrun --nproc-per-node 2 examples/own_script.py PartTwo

Together with `witness`, which guards train_model here and any loop of your own: see docs/own.md.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from common import training
from common.cluster.node import Node
from common.core.collectives import world_size
from common.core.console import console
from common.core.failures import UsageError, first_line
from common.core.precision import Precision
from common.core.progress import Position, Progress
from common.core.uncaught import told_alone
from common.core.world import World
from common.data.loaders import PlainLoader, batch_size_of
from common.evaluation import Evaluation, predict
from common.model.replica import unwrapped
from common.report import count_parameters, generate_eval_report
from common.run import checkpoint_file
from common.run.run import Run
from common.run.run_log import RunLog
from common.run.saving import Checkpoints
from common.run.state import State
from common.run.tracing import create_tracer
from common.settings.settings import Settings
from common.step.gradient_check import located
from common.step.gradient_sync import GradientSync
from common.witnessing.script_run import AtEpochEnds, metrics_path, recorded
from common.witnessing.witness import witness
from PartThree.ddp import OWN_BUFFERS
from PartTwo.strategies import create_strategy

TASKS = {"PartOne": "gather-scatter", "PartTwo": "all-reduce"}

__all__ = ["evaluate_model", "generate_eval_report", "get_model_parameters",
           "prepare_model_for_evaluation", "prepare_model_for_training", "train_model", "witness"]


def get_model_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return count_parameters(model)


@told_alone()
def prepare_model_for_evaluation(model: nn.Module, device: torch.device | str,
                                 checkpoint_path: str | Path) -> nn.Module:
    """`model` on `device` with a checkpoint's weights, in evaluation mode.

    The checkpoint may be of another program: see docs/checkpoints.md. Raises CheckpointError when
    it cannot be used.
    """
    contents = checkpoint_file.read(checkpoint_path, say=print)
    checkpoint_file.restore(contents, checkpoint_path, unwrapped(model))
    return model.to(device).eval()


@told_alone()
def prepare_model_for_training(
        model: nn.Module, device: torch.device | str, learning_rate: float, momentum: float,
        weight_decay: float, continue_flag: bool, continue_checkpoint_path: str | Path = "",
        distribute_flag: bool = False) -> tuple[nn.Module, nn.Module, Optimizer]:
    """(model, cross-entropy criterion, SGD optimizer), all on `device`.

    `continue_flag` restores model and optimizer from a checkpoint, also from another program's;
    where that holds weights alone, only the model. `distribute_flag` wraps the model in
    DistributedDataParallel, which every rank of a process group must do together. The leader says
    how many parameters there are.
    """
    if distribute_flag:
        _require_group("distribute_flag=True")
    model = model.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    try:
        optimizer = SGD(model.parameters(), learning_rate, momentum, weight_decay=weight_decay)
    except ValueError as error:
        raise UsageError(f"torch's SGD refuses these: {first_line(error)}") from error
    if continue_flag:
        contents = checkpoint_file.read(continue_checkpoint_path, say=print)
        checkpoint_file.restore(contents, continue_checkpoint_path, model, optimizer)
    if distribute_flag:
        model = DistributedDataParallel(model, **OWN_BUFFERS)
    if _world().is_leader:
        console(_world())(f"the model has {get_model_parameters(model):,} trainable parameters")
    return model, criterion, optimizer


def _world() -> World:
    return World(dist.get_rank() if dist.is_initialized() else 0, world_size())


def _require_group(what: str) -> None:
    if not dist.is_initialized():
        raise UsageError(f"{what} needs a process group, and there is none: call "
                         "torch.distributed.init_process_group() first, on every rank")


@told_alone()
def train_model(
        model: nn.Module, device: torch.device | str, criterion: nn.Module, optimizer: Optimizer,
        start_epoch: int, end_epoch: int, train_loader: Iterable[tuple[Tensor, Tensor]],
        logs_path: str | Path, checkpoint_dir: str | Path, distribute_flag: bool,
        task_flag: str = "", rank: int | str = "", *, gradient_sync: GradientSync | None = None,
        log_every: int = 20, timeout: float = Settings().timeout) -> nn.Module:
    """Trains epochs `start_epoch` to `end_epoch`, both included, and returns the model.

    `train_loader` yields (inputs, targets), this rank's own shard, in batches of equal size on all
    ranks. The seam follows from (distribute_flag, task_flag): (False, "") one node, (False,
    "PartOne") gather/scatter, (False, "PartTwo") all-reduce, (True, "") a DDP model;
    `gradient_sync` overrules it. The timing log goes to the file `logs_path`, a rank's lines with
    its number where there are several or `rank` is given, and as JSON lines where `metrics_path`
    says; the leader writes every `checkpoint_dir/Epoch_N.pt`. Every rank of a process group must
    call it. A strict witness watches over it, with `timeout` seconds for a rank that is stuck: see
    common/witnessing/witness.py.
    """
    seam = gradient_sync or _seam(distribute_flag, task_flag)
    node = Node(_world(), torch.device(device), torch.get_num_threads())
    with witness(model, optimizer, train_loader, timeout=timeout, strict=True,
                 progress=node.progress) as observer:
        _require_averaging(model, distribute_flag, task_flag, gradient_sync)
        loader = PlainLoader(train_loader, node.device)
        settings = _settings(model, optimizer, train_loader, Path(checkpoint_dir), end_epoch,
                             log_every)
        bare, logs = unwrapped(model), Path(logs_path)
        seam.prepare(bare, optimizer)
        start = Position(start_epoch, 0, (start_epoch - 1) * loader.iterations)
        with RunLog(logs, metrics_path(logs, node.world.rank), node.world, start, log_every,
                    distributed=rank != "" or node.world.size > 1) as log:
            run = Run("", settings, node, bare, optimizer, seam, log,
                      Checkpoints(Path(checkpoint_dir), node, log, kept=None), loader.iterations,
                      AtEpochEnds(observer),
                      create_tracer(settings, loader.iterations, logs.parent, node, log),
                      State(start))
            with recorded(run), located(bare, lambda: f"rank {node.world.rank} at {run.position}"):
                return training.train(model, criterion, optimizer, loader, seam, run)


def _settings(model: nn.Module, optimizer: Optimizer, loader: Any, folder: Path, epochs: int,
              log_every: int) -> Settings:
    group = optimizer.param_groups[0]
    return Settings(
        workload="custom", data_dir=Path(), output_dir=folder, epochs=epochs,
        batch_size=batch_size_of(loader) * world_size(), learning_rate=group["lr"],
        momentum=group.get("momentum", 0.0), weight_decay=group.get("weight_decay", 0.0),
        precision=_precision_of(model).name, log_every=log_every)


def _require_averaging(model: nn.Module, distribute_flag: bool, task_flag: str,
                       gradient_sync: GradientSync | None) -> None:
    """Raises UsageError where the gradients of several ranks would not be averaged as flagged."""
    is_wrapped = isinstance(model, DistributedDataParallel)
    if distribute_flag and not is_wrapped:
        raise UsageError(f"rank {_world().rank}: distribute_flag=True, but the model is not "
                         "wrapped in DistributedDataParallel: train the one that "
                         "prepare_model_for_training(..., distribute_flag=True) returns")
    if task_flag:
        _require_group(f"task_flag={task_flag!r}")
    if world_size() > 1 and not (is_wrapped or task_flag or gradient_sync):
        raise UsageError(f"there is a process group of {world_size()} ranks and nobody averages: "
                         "each would train a model of its own. Give task_flag='PartOne' or "
                         "'PartTwo', or distribute_flag=True with a wrapped model")


def _precision_of(model: nn.Module) -> Precision:
    return Precision("float64" if next(model.parameters()).dtype == torch.float64 else "float32")


def _seam(distribute_flag: bool, task_flag: str) -> GradientSync:
    if task_flag not in ("", *TASKS) or (distribute_flag and task_flag):
        raise UsageError(f"distribute_flag={distribute_flag} with task_flag={task_flag!r} cannot "
                         "be meant: use (False, ''), (False, 'PartOne'), (False, 'PartTwo') or "
                         "(True, '')")
    return create_strategy(TASKS[task_flag]) if task_flag else GradientSync()


@told_alone()
def evaluate_model(model: nn.Module, device: torch.device | str, criterion: nn.Module,
                   test_loader: Iterable[tuple[Tensor, Tensor]], report_path: str | Path,
                   checkpoint_path: str | Path) -> Evaluation:
    """Loss per sample and predictions over `test_loader`, written as a report and returned.

    The class is the arg-max of the log-softmax. Evaluates the whole loader by itself: needs no
    other rank.
    """
    batches = [(inputs.to(device), targets.to(device)) for inputs, targets in test_loader]
    totals, classes = predict(model, criterion, batches, _precision_of(model), Progress())
    result = Evaluation(totals.means()[0], *classes.cpu().numpy())
    generate_eval_report(result.truth, result.predictions, result.loss, report_path,
                         checkpoint_path)
    return result
