"""The course's documented functions: its names and parameter orders, this project's code.

    from common import prepare_model_for_training, train_model
"""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from common import training
from common.cluster.process_group import Node
from common.core.collectives import world_size
from common.core.failures import UsageError
from common.core.precision import Precision
from common.core.progress import Position, Progress
from common.core.settings import Settings
from common.core.world import World
from common.data.loaders import PlainLoader
from common.evaluation import Evaluation, predict
from common.model.replica import unwrapped
from common.report import count_parameters, generate_eval_report
from common.run import checkpoint
from common.run.checkpoints import Checkpoints
from common.run.run import Run
from common.run.run_log import RunLog
from common.run.state import State
from common.step.gradient_check import located
from common.step.gradient_sync import GradientSync
from PartThree.ddp import OWN_BUFFERS
from PartTwo.strategies import create_strategy

TASKS = {"PartOne": "gather-scatter", "PartTwo": "all-reduce"}

__all__ = ["evaluate_model", "generate_eval_report", "get_model_parameters",
           "prepare_model_for_evaluation", "prepare_model_for_training", "train_model"]


def get_model_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return count_parameters(model)


def prepare_model_for_evaluation(model: nn.Module, device: torch.device | str,
                                 checkpoint_path: str | Path) -> nn.Module:
    """`model` on `device` with a checkpoint's weights, in evaluation mode.

    The checkpoint may be a plain torch.save of the four keys, or of a state_dict. Raises
    CheckpointError when it cannot be used.
    """
    contents = checkpoint.read(checkpoint_path, say=print)
    checkpoint.restore(contents, checkpoint_path, unwrapped(model))
    return model.to(device).eval()


def prepare_model_for_training(
        model: nn.Module, device: torch.device | str, learning_rate: float, momentum: float,
        weight_decay: float, continue_flag: bool, continue_checkpoint_path: str | Path = "",
        distribute_flag: bool = False) -> tuple[nn.Module, nn.Module, Optimizer]:
    """(model, cross-entropy criterion, SGD optimizer), all on `device`.

    `continue_flag` restores model and optimizer from a checkpoint, or from a plain torch.save of
    the four keys; of a state_dict alone only the model. `distribute_flag` wraps the model in
    DistributedDataParallel, which every rank of a process group must do together.
    """
    model = model.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = SGD(model.parameters(), learning_rate, momentum, weight_decay=weight_decay)
    if continue_flag:
        contents = checkpoint.read(continue_checkpoint_path, say=print)
        checkpoint.restore(contents, continue_checkpoint_path, model, optimizer)
    if distribute_flag:
        model = DistributedDataParallel(model, **OWN_BUFFERS)
    return model, criterion, optimizer


def train_model(
        model: nn.Module, device: torch.device | str, criterion: nn.Module, optimizer: Optimizer,
        start_epoch: int, end_epoch: int, train_loader: Iterable[tuple[Tensor, Tensor]],
        logs_path: str | Path, checkpoint_dir: str | Path, distribute_flag: bool,
        task_flag: str = "", rank: int | str = "", *, gradient_sync: GradientSync | None = None,
        log_every: int = 20) -> nn.Module:
    """Trains epochs `start_epoch` to `end_epoch`, both included, and returns the model.

    `train_loader` yields (inputs, targets), this rank's own shard, in batches of equal size on all
    ranks. The seam follows from (distribute_flag, task_flag): (False, "") one node, (False,
    "PartOne") gather/scatter, (False, "PartTwo") all-reduce, (True, "") a DDP model;
    `gradient_sync` overrules it. The timing log goes to the file `logs_path` and, as JSON lines,
    in `logs_path`.jsonl; the leader writes every `checkpoint_dir/Epoch_N.pt`. `rank`, when given,
    stands in the log's lines. Every rank of a process group must call it.
    """
    here = dist.get_rank() if dist.is_initialized() else 0
    node = Node(World(here, world_size()), torch.device(device), torch.get_num_threads())
    settings = Settings(
        workload="custom", data_dir=Path(), output_dir=Path(checkpoint_dir), epochs=end_epoch,
        batch_size=0, learning_rate=optimizer.param_groups[0]["lr"], momentum=0.0,
        weight_decay=0.0, precision=_precision_of(model).name, log_every=log_every)
    loader = PlainLoader(train_loader, node.device)
    seam = gradient_sync or _seam(distribute_flag, task_flag)
    bare = unwrapped(model)
    seam.prepare(bare, optimizer)
    logs = Path(logs_path)
    start = Position(start_epoch, 0, (start_epoch - 1) * loader.iterations)
    with RunLog(logs, logs.with_name(logs.name + ".jsonl"), node.world, start, log_every,
                distributed=rank != "") as log:
        run = Run("", settings, node, bare, optimizer, seam, log,
                  Checkpoints(Path(checkpoint_dir), node, log, kept=None), loader.iterations,
                  state=State(start))
        with located(bare, lambda: f"rank {here} at {run.position}"):
            return training.train(model, criterion, optimizer, loader, seam, run)


def _precision_of(model: nn.Module) -> Precision:
    return Precision("float64" if next(model.parameters()).dtype == torch.float64 else "float32")


def _seam(distribute_flag: bool, task_flag: str) -> GradientSync:
    if task_flag not in ("", *TASKS) or (distribute_flag and task_flag):
        raise UsageError(f"distribute_flag={distribute_flag} with task_flag={task_flag!r} cannot "
                         "be meant: use (False, ''), (False, 'PartOne'), (False, 'PartTwo') or "
                         "(True, '')")
    return create_strategy(TASKS[task_flag]) if task_flag else GradientSync()


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
