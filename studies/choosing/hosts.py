"""Times every strategy in turn on these hosts, with a run's own data, model and global batch.

    scripts/local_cluster.sh 2 scripts/choose_strategy.py --workload digits-vgg11 --seconds 5
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from common.cluster.node import Node
from common.core.collectives import gather_rows
from common.core.world import World
from common.data.dataset import Dataset
from common.settings.settings import Settings
from studies.choosing.measuring import Contestant, measure, measured_cell, take_turn
from studies.prediction.grid import COMPUTE_ONLY, Cell

ROUNDS = 5  # each gives every strategy a turn
WARM_UP_STEPS = 2


def measure_hosts(names: Sequence[str], settings: Settings, train_set: Dataset, node: Node,
                  seconds: float) -> list[Cell]:
    """Cells of the strategies and of computing alone, on the leader; [] elsewhere.

    The first is the leader by itself, with the whole batch, if that is possible; the second all
    ranks. Every rank must call. Each strategy gets about so many `seconds`.
    """
    everybody = [Contestant(name, settings, train_set, node) for name in (COMPUTE_ONLY, *names)]
    alone = None
    if settings.batch_norm == "local":  # the other is a collective in every layer
        by_itself = replace(node, world=World(), ranks=(), store=None)  # as if without other hosts
        alone = Contestant(COMPUTE_ONLY, settings, train_set, by_itself)  # on every rank:
        alone = alone if node.world.is_leader else None  # choosing its convolutions is collective
    contestants = [alone, *everybody]
    steps = [_steps(each, seconds, node) for each in contestants]
    rounds = measure(contestants, steps, ROUNDS, node)
    if not rounds:
        return []
    one_host = [measured_cell(1, [alone], rounds[:1])] if alone else []
    return [*one_host, measured_cell(node.world.size, everybody, rounds[1:])]


def _steps(contestant: Contestant | None, seconds: float, node: Node) -> int:
    """The steps of a turn, from those of a first one, on the slowest rank."""
    turn = take_turn(contestant, WARM_UP_STEPS, node)
    row = torch.tensor([turn["step"] if turn else 0.0], dtype=torch.float64, device=node.device)
    slowest = float(gather_rows(row).max())
    return max(1, int(seconds / ROUNDS / slowest)) if slowest else 1
