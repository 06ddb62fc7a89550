"""The course's functions in a script of one's own: a model, data and a loop over nothing else.

    python3 examples/own_script.py
    .venv/bin/torchrun --nproc-per-node 2 examples/own_script.py PartOne
    .venv/bin/torchrun --nproc-per-node 2 examples/own_script.py PartTwo
    .venv/bin/torchrun --nproc-per-node 2 examples/own_script.py PartThree

Each rank trains on its own shard of scikit-learn's digits; the part says who averages the
gradients. A second argument names the folder for logs and checkpoints (default: outputs/own). What
the functions refuse they raise as a Failure of common/core/failures.py, such as UsageError.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)  # .venv's Python, if this one has no torch

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import (
    evaluate_model,
    prepare_model_for_evaluation,
    prepare_model_for_training,
    train_model,
)

FLAGS = {"alone": (False, ""), "PartOne": (False, "PartOne"), "PartTwo": (False, "PartTwo"),
         "PartThree": (True, "")}
EPOCHS, BATCH = 3, 32


def build_model() -> nn.Module:
    torch.manual_seed(1)  # the same weights on every rank
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def main(part: str = "alone", folder: str = "outputs/own") -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    images, classes = map(torch.from_numpy, load_digits(return_X_y=True))
    digits = TensorDataset(images.float() / 16, classes)
    train_set, test_set = torch.utils.data.random_split(
        digits, [1500, len(digits) - 1500], torch.Generator().manual_seed(2))
    loader = DataLoader(train_set, BATCH // ranks,
                        sampler=DistributedSampler(train_set, ranks, rank))

    distribute_flag, task_flag = FLAGS[part]
    logs = Path(folder) / part
    model, criterion, optimizer = prepare_model_for_training(
        build_model(), "cpu", learning_rate=0.1, momentum=0.9, weight_decay=1e-4,
        continue_flag=False, distribute_flag=distribute_flag)
    train_model(model, "cpu", criterion, optimizer, 1, EPOCHS, loader,
                logs / f"logs_rank{rank}.txt", logs / "checkpoints", distribute_flag, task_flag)
    if rank == 0:
        path = logs / "checkpoints" / f"Epoch_{EPOCHS}.pt"
        model = prepare_model_for_evaluation(build_model(), "cpu", path)
        result = evaluate_model(model, "cpu", criterion, DataLoader(test_set, 100),
                                logs / "report.txt", path)
        right = (result.truth == result.predictions).mean()
        print(f"{part} on {ranks} ranks: {100 * right:.1f} % of {len(test_set)} digits are right")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    if not FLAGS.keys() >= {*sys.argv[1:2]} or len(sys.argv) > 3:
        print("error: start it as python3 examples/own_script.py, or as .venv/bin/torchrun "
              "--nproc-per-node 2 examples/own_script.py PartOne, PartTwo or PartThree",
              file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
