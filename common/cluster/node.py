"""This process as one node of a run: what a group of processes hands to whoever trains.

    with process_group(world, settings) as node:
        node.agree("data", dataset.digest)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed import Store

from common.cluster.board import Board
from common.cluster.rank_info import RankInfo
from common.cluster.stopping import Stop
from common.core.console import console
from common.core.failures import RanksDisagree
from common.core.progress import Progress
from common.core.world import World


@dataclass
class Node:
    """This process, ready to train: where it computes, and the RankInfo of every rank.

    `ranks_here` is the number of ranks on this machine, this one counted; `agreed` the topics of
    all calls of `agree`.
    """

    world: World
    device: torch.device
    threads: int
    backend: str = "none"
    ranks: Sequence[RankInfo] = ()
    progress: Progress = field(default_factory=Progress)
    stop: Stop = field(default_factory=Stop)
    store: Store | None = None
    ranks_here: int = 1
    agreed: list[str] = field(default_factory=list)

    @property
    def whose(self) -> str:
        """Prefix of a sentence about this rank's own disk, which the other ranks print too."""
        return f"{self.ranks[self.world.rank]}: " if len(self.ranks) > 1 else ""

    def wait_for_device(self) -> None:
        """Returns when the GPU has finished its queued work; at once on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def note_saved(self, path: str) -> None:
        """Notes the last good checkpoint, "" for none; the leader publishes it."""
        self.progress.saved = path
        if self.store is not None and self.world.is_leader:
            self.store.set("saved", path)

    def agree(self, topic: str, value: str, advice: str = "",
              parts: Mapping[str, int] | None = None) -> None:
        """Returns when every rank has passed the same `value`. Every rank must call.

        Waits without limit: the watch ends the wait for a lost rank. Raises RanksDisagree naming
        the first rank that differs from the leader, and both values, with `advice` behind it. Of
        `parts`, which all ranks give by the same names, it names the first that differs.
        """
        if self.store is None:
            return

        def compare(posted: list[tuple[str, dict[str, int]]]) -> None:
            mine, my_parts = posted[0]
            for rank, (other, theirs) in zip(self.ranks, posted, strict=True):
                if other != mine:
                    first = next((f", first {name}" for name, part in my_parts.items()
                                  if theirs.get(name) != part), "")
                    raise RanksDisagree(f"{rank} has other {topic} ({other}) than {self.ranks[0]} "
                                        f"({mine}){first}{advice}")

        topic_once = topic + " again" * self.agreed.count(topic)
        self.agreed.append(topic)
        Board(self.store, self.world, console(self.world)).collect(
            topic_once, (value, parts or {}), compare)
