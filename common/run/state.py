"""What changes while a run goes on, and is in its checkpoints."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from common.cluster.process_group import Node
from common.core.collectives import broadcast_bytes, gather_bytes_to_leader
from common.core.progress import Position
from common.step.loss_scale import LossScale


@dataclass
class Totals:
    """Sums over the samples of an epoch so far: means come from these, never from batch means.

    They are exact, and so the same however many ranks have added them up in whatever order. `score`
    is the metric's: for accuracy, the number of samples that were classified rightly.
    """

    loss: Fraction = Fraction(0)
    score: Fraction = Fraction(0)
    samples: int = 0

    def add(self, other: "Totals") -> None:
        """Adds the sums over other samples."""
        self.loss += other.loss
        self.score += other.score
        self.samples += other.samples

    def means(self) -> tuple[float, float]:
        """(mean loss, mean of the metric) per sample; not a number before the first sample."""
        if not self.samples:
            return float("nan"), float("nan")
        return float(self.loss / self.samples), float(self.score / self.samples)

    def as_json(self) -> list[str]:
        """The three sums, which `from_json` reads."""
        return [str(self.loss), str(self.score), str(self.samples)]

    @classmethod
    def from_json(cls, sums: list[str]) -> "Totals":
        loss, score, samples = sums
        return cls(Fraction(loss), Fraction(score), int(samples))


@dataclass
class State:
    """Where a run stands, on this rank.

    `position` is the next batch to train on, `totals` this rank's sums over the epoch so far,
    `validation_losses` one number an epoch, the same on all ranks, as `loss_scale` is.
    """

    position: Position = Position()
    totals: Totals = field(default_factory=Totals)
    validation_losses: list[float] = field(default_factory=list)
    loss_scale: LossScale = field(default_factory=LossScale)

    def all_totals(self, node: Node) -> Totals:
        """The totals of all ranks together. Every rank must call it."""
        node.progress.phase = "totals"
        return over_ranks(self.totals, node)


def over_ranks(totals: Totals, node: Node) -> Totals:
    """The sum of every rank's totals, which the leader adds up. Every rank must call it."""
    whole = summed(map(_from_bytes, gather_bytes_to_leader(_as_bytes(totals), node.device)))
    return _from_bytes(broadcast_bytes(_as_bytes(whole), node.device))


def _as_bytes(totals: Totals) -> bytes:
    return " ".join(totals.as_json()).encode()


def _from_bytes(data: bytes) -> Totals:
    return Totals.from_json(data.decode().split())


def summed(parts: Iterable[Totals]) -> Totals:
    """All of them together."""
    whole = Totals()
    for part in parts:
        whole.add(part)
    return whole
