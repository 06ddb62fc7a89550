"""State that changes during a run and is saved in its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.cluster.node import Node
from common.core.collectives import broadcast_bytes, gather_bytes, gather_bytes_to_leader
from common.core.metrics import Totals, summed
from common.core.progress import Position
from common.step.loss_scale import LossScale


@dataclass
class State:
    """Where a run stands, on this rank.

    `position` is the next batch to train on, `totals` this rank's sums over the epoch so far, or
    all ranks' where they are `is_whole`; `validation_losses` one number an epoch, the same on all
    ranks, as `loss_scale` is. `closed` is the position of the last epoch's end that is done with:
    logged, validated and saved.
    """

    position: Position = Position()
    totals: Totals = field(default_factory=Totals)
    validation_losses: list[float] = field(default_factory=list)
    closed: Position = Position()
    is_whole: bool = False
    loss_scale: LossScale = field(default_factory=LossScale)

    def restore(self, contents: Mapping[str, Any], is_leader: bool, validates: bool) -> None:
        """Goes on where a checkpoint's `contents` end, whose totals are those of all ranks.

        So only the leader takes them; the losses are taken if the run still `validates`.
        """
        self.position = Position(*contents["position"])
        self.closed = Position(*contents.get("closed", self.position))
        if (is_leader or self.is_whole) and (totals := contents.get("totals")):
            self.totals = Totals.from_json(totals)
        if validates:
            self.validation_losses = contents.get("validation_losses", [])
        self.loss_scale.restore(contents.get("loss_scale", {}))

    def all_totals(self, node: Node) -> Totals:
        """The totals of all ranks together. Every rank must call it."""
        if self.is_whole:
            return self.totals
        node.progress.phase = "totals"
        return over_ranks(self.totals, node)


def over_ranks(totals: Totals, node: Node) -> Totals:
    """The sum of every rank's totals, which the leader adds up. Every rank must call it."""
    whole = summed(map(_from_bytes, gather_bytes_to_leader(_as_bytes(totals), node.device)))
    return _from_bytes(broadcast_bytes(_as_bytes(whole), node.device))


def told_to_all(totals: Totals, node: Node) -> Totals:
    """The same, known to every rank when any rank knows it: there is no last word of a leader."""
    return summed(map(_from_bytes, gather_bytes(_as_bytes(totals), node.device)))


def _as_bytes(totals: Totals) -> bytes:
    return " ".join(totals.as_json()).encode()


def _from_bytes(data: bytes) -> Totals:
    return Totals.from_json(data.decode().split())
