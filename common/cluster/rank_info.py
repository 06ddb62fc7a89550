"""Report of each rank when it joins, and the check that all were started for one run."""

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.cluster.devices import visible_gpus
from common.core.failures import RanksDisagree
from common.core.provenance import ROOT, code_digest, instruction_sets, lines_of, versions
from common.core.world import World
from common.settings.row import differences
from common.settings.settings import Settings
from common.settings.user_code import digests

# Variables that torch reads, with their defaults; where ranks differ in one, they wait for each
# other's words in different forms: torch itself then hangs, or crashes.
SHARED_VARIABLES = {"TORCH_DISTRIBUTED_DEBUG": "OFF", "GLOO_DEVICE_TRANSPORT": "TCP",
                    "TORCH_GLOO_LAZY_INIT": "0"}


@dataclass(frozen=True)
class RankInfo:
    """One rank, in plain values: asdict(info) can be sent as JSON, RankInfo(**fields) reads it.

    Ranks with equal `machine` share cores, whatever their hosts are called. `gpus` are those that
    the rank sees (visible_gpus), none with --device cpu. `settings` holds those that must be equal
    on all ranks; `program` is one of this project's, "" for somebody's own.
    """

    rank: int
    host: str
    pid: int
    address: str
    interface: str
    machine: str = ""
    cores: int = 1
    gpus: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    code: str = ""
    instructions: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    program: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    name: int | None = None

    @classmethod
    def of_this_process(cls, world: World, settings: Settings, interface: str,
                        address: str) -> "RankInfo":
        """The info of this process."""
        host, boot = socket.gethostname(), lines_of("/proc/sys/kernel/random/boot_id")
        return cls(world.rank, host, os.getpid(), address, interface, boot[0] if boot else host,
                   len(os.sched_getaffinity(0)),
                   [] if settings.device == "cpu" else visible_gpus(),
                   versions() | digests([settings.workload, *(s.name for s in settings.sync)]),
                   code_digest(), instruction_sets(), settings.shared(), _program(),
                   {name: os.environ.get(name, default).upper()
                    for name, default in SHARED_VARIABLES.items()}, world.name)

    def __str__(self) -> str:
        return f"rank {self.launched} on {self.host}"

    @property
    def launched(self) -> int:
        """The rank that the process was launched as: another than `rank` once others are lost."""
        return self.rank if self.name is None else self.name


def _program() -> str:
    path = Path(sys.argv[0]).resolve()
    here = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
    return here.as_posix() if here.parts[:1] in (("PartTwo",), ("PartThree",), ("scripts",)) else ""


def machines(ranks: Sequence[RankInfo]) -> dict[str, list[int]]:
    """The ranks on each machine, in order."""
    by_machine: dict[str, list[int]] = {}
    for each in ranks:
        by_machine.setdefault(each.machine, []).append(each.rank)
    return by_machine


def own_gpus(seen: Sequence[Sequence[str]]) -> list[int]:
    """A GPU for each rank of one machine that no other has: its index among those the rank sees.

    `seen` are the GPUs of each rank. Ranks that see the same take them in order. Empty where there
    are too few. A bipartite matching, by augmenting paths.
    """
    owners: dict[str, int] = {}

    def take(rank: int, asked: set[str]) -> bool:
        for gpu in sorted(seen[rank], key=owners.__contains__):  # free ones first
            if gpu not in asked:
                asked.add(gpu)
                if gpu not in owners or take(owners[gpu], asked):
                    owners[gpu] = rank
                    return True
        return False

    if not all(take(rank, set()) for rank in range(len(seen))):
        return []
    own = {rank: gpu for gpu, rank in owners.items()}
    return [gpus.index(own[rank]) for rank, gpus in enumerate(seen)]


def require_one_run(ranks: Sequence[RankInfo]) -> None:
    """Raises RanksDisagree naming the first rank that differs from the leader, and in what."""
    leader = ranks[0]
    for other in ranks[1:]:
        if other.code != leader.code:
            raise RanksDisagree(f"{other} runs other code ({other.code}) than {leader} "
                                f"({leader.code}): bring both to the same commit")
        if other.program != leader.program:
            raise RanksDisagree(f"{other} runs {other.program or 'a program of its own'} and "
                                f"{leader} {leader.program or 'a program of its own'}: start one "
                                "program on all nodes")
        for topic in ("versions", "settings", "environment"):
            theirs, ours = getattr(other, topic), getattr(leader, topic)
            if changed := differences(ours, theirs):
                pairs = [f"{name} is {theirs.get(name)} there and {ours.get(name)} on rank 0"
                         for name in changed]
                raise RanksDisagree(f"{other} and {leader} differ in {topic}: {'; '.join(pairs)}")
