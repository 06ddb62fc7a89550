"""The strategies in a training loop of one's own: this file needs of the project six lines.

    .venv/bin/torchrun --nproc-per-node 2 examples/own_loop.py overlapped-all-reduce
    .venv/bin/torchrun --nproc-per-node 2 examples/own_loop.py local-sgd

Every rank begins with the same weights and takes its own part of each batch. The last line is the
loss of the trained model over all data; with a strategy that averages gradients it is, but for
rounding, that of one rank.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)  # .venv's Python, if this one has no torch

import os

import torch
import torch.distributed as dist
from torch import nn

from common import witness
from PartTwo.strategies import SyncOptions, create_strategy  # 1

STEPS, BATCH = 40, 24


def main(strategy: str) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    inputs = torch.randn(STEPS * BATCH, 8, dtype=torch.float64)
    targets = inputs.sin().sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sync = create_strategy(strategy, SyncOptions(every=5, iterations=STEPS))  # 2
    sync.prepare(model, optimizer)  # 3
    with witness(model, optimizer):  # 4: raises RanksDisagree for what would silently train wrongly
        for step in range(STEPS):
            mine = slice(step * BATCH + rank, (step + 1) * BATCH, ranks)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[mine]), targets[mine]).backward()
            sync.average([each.grad for each in model.parameters() if each.grad is not None])  # 5
            optimizer.step()
        sync.settle()  # 6
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs), targets).item()
    if rank == 0:
        print(f"{strategy} on {ranks} ranks: loss {loss:.9f} after {STEPS} steps, "
              f"{sync.bytes_sent:,} bytes sent by rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ or len(sys.argv) != 2:
        print("error: start it as .venv/bin/torchrun --nproc-per-node 2 examples/own_loop.py "
              "all-reduce, or with another strategy", file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
