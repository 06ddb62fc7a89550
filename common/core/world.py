"""This process's rank, and how to reach the other ranks. Pure: no sockets, no torch.

    RANK=1 WORLD_SIZE=4 python3 -c "from common.core.world import *; print(detect_world({}))"
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.core.failures import UsageError

DEFAULT_MASTER = "127.0.0.1"
DEFAULT_PORT = 29500


@dataclass(frozen=True)
class World:
    """This process among all processes of a run; one process is one rank.

    `source` is what launched it: "flags", "torchrun", "slurm" or "alone". `store_is_served` is true
    when a launcher already serves the rendezvous store (torchrun's agent), so rank 0 must not.
    `token` is a word that all ranks of one job share, so that two jobs cannot mix by mistake.
    """

    rank: int = 0
    size: int = 1
    master_address: str = DEFAULT_MASTER
    master_port: int = DEFAULT_PORT
    source: str = "alone"
    store_is_served: bool = False
    attempt: int = 0
    token: str = ""

    @property
    def is_leader(self) -> bool:
        return self.rank == 0


def detect_world(
    environment: Mapping[str, str] = os.environ,
    *,
    master_ip: str | None = None,
    num_nodes: int | None = None,
    rank: int | None = None,
    master_port: int | None = None,
) -> World:
    """The World of this process: from explicit flags, else torchrun, else SLURM, else alone.

    Raises UsageError for half a launch (say, a rank without a world size), naming what is missing,
    and for a rank outside the world.
    """
    if any(value is not None for value in (master_ip, num_nodes, rank)):
        world = _from_flags(master_ip, num_nodes, rank)
    elif "RANK" in environment or "WORLD_SIZE" in environment:
        world = _from_torchrun(environment)
    elif "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        world = _from_slurm(environment)
    else:
        world = World()
    port = master_port if master_port is not None else _number(
        environment, "MASTER_PORT", DEFAULT_PORT)
    return _checked(replace(world, master_port=port, token=environment.get("RUN_TOKEN", "")))


def _from_flags(master_ip: str | None, num_nodes: int | None, rank: int | None) -> World:
    given = {"--master-ip": master_ip, "--num-nodes": num_nodes, "--rank": rank}
    missing = [flag for flag, value in given.items() if value is None]
    if num_nodes is None or (missing and num_nodes != 1):
        present = [flag for flag, value in given.items() if value is not None]
        raise UsageError(f"{' and '.join(present)} given without {' and '.join(missing)}: "
                         "a node needs all three (or none, under torchrun or srun)")
    return World(rank or 0, num_nodes, master_ip or DEFAULT_MASTER, source="flags")


def _from_torchrun(environment: Mapping[str, str]) -> World:
    for variable, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if variable not in environment:
            raise UsageError(f"the environment sets {other} but not {variable}: "
                             f"a launcher sets both, so unset {other} or set {variable}")
    served = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return World(_number(environment, "RANK"), _number(environment, "WORLD_SIZE"),
                 environment.get("MASTER_ADDR", DEFAULT_MASTER), source="torchrun",
                 store_is_served=served,
                 attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0))


def _from_slurm(environment: Mapping[str, str]) -> World:
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", ""))
    size_variable = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment \
        else "SLURM_NTASKS"
    master = environment.get("MASTER_ADDR") or first_slurm_node(nodes)
    return World(_number(environment, "SLURM_PROCID"), _number(environment, size_variable),
                 master, source="slurm", attempt=_number(environment, "SLURM_RESTART_COUNT", 0))


def first_slurm_node(node_list: str) -> str:
    """The first host of SLURM's compressed list: "gpu[03-05,9],login" gives "gpu03"."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", node_list)
    if not match:
        raise UsageError(f"SLURM_NODELIST is {node_list!r}, which names no host")
    return match.group(1) + (match.group(2) or "")


def _number(environment: Mapping[str, str], variable: str, default: int | None = None) -> int:
    text = environment.get(variable, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        said = "is not set" if text is None else f"is {text!r}, not a whole number"
        raise UsageError(f"the environment variable {variable} {said}") from None


def _checked(world: World) -> World:
    if world.size < 1:
        raise UsageError(f"the number of nodes is {world.size}; it must be at least 1")
    if not 0 <= world.rank < world.size:
        raise UsageError(f"rank {world.rank} is outside the world: with {world.size} nodes "
                         f"the ranks are 0 to {world.size - 1}")
    if not 1 <= world.master_port <= 65535:
        raise UsageError(f"master port {world.master_port} is not a port (1 to 65535)")
    return world
