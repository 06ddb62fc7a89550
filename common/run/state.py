"""What changes while a run goes on, and is in its checkpoints."""

from dataclasses import dataclass, field

import torch

from common.cluster.process_group import Node
from common.core.collectives import gather_rows
from common.core.progress import Position


@dataclass
class Totals:
    """Sums over the samples of an epoch so far: means come from these, never from batch means."""

    loss: float = 0.0
    correct: float = 0
    samples: float = 0

    def add(self, other: "Totals") -> None:
        """Adds the sums over other samples."""
        self.loss += other.loss
        self.correct += other.correct
        self.samples += other.samples

    def means(self) -> tuple[float, float]:
        """(mean loss, accuracy) per sample; not a number before the first sample."""
        count = self.samples or float("nan")
        return self.loss / count, self.correct / count


@dataclass
class State:
    """Where a run stands, on this rank.

    `position` is the next batch to train on, `totals` this rank's sums over the epoch so far,
    `validation_losses` one number an epoch, the same on all ranks.
    """

    position: Position = Position()
    totals: Totals = field(default_factory=Totals)
    validation_losses: list[float] = field(default_factory=list)

    def gathered(self, node: Node) -> list[list[float]]:
        """The totals of every rank, by rank. Every rank must call it."""
        node.progress.phase = "totals"
        row = torch.tensor([self.totals.loss, self.totals.correct, self.totals.samples],
                           dtype=torch.float64, device=node.device)
        return gather_rows(row).tolist()


def summed(rows: list[list[float]]) -> Totals:
    """The totals of all ranks together."""
    return Totals(*(sum(column) for column in zip(*rows, strict=True)))
