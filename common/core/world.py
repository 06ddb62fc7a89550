"""This process's rank, and how to reach the other ranks. Pure: no sockets, no torch.

    RANK=1 WORLD_SIZE=4 python3 -c "from common.core.world import *; print(detect_world({}))"
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from common.core.failures import UsageError

DEFAULT_MASTER = "127.0.0.1"
DEFAULT_PORT = 29500
# What a process that mpirun has started is told: its rank, the world's size, and how many ranks its
# machine has; by OpenMPI, then by MPICH and Intel MPI.
MPI_VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
                 ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"))
BY_HAND = "RANK and WORLD_SIZE in the environment"
WITHOUT_SRUN = "SLURM without srun"
NO_TASK_OF_SRUN = 0xFFFFFFF0  # from here on SLURM_STEP_ID means a batch script or a shell
ADDRESS = re.compile(r"(?:\w+://)?(\[[^]]+\]|[^:/[\]]+)(?::(\d+))?(?:/.*)?")  # in a URL, or alone


class Nodes(NamedTuple):
    """--num-nodes: the most ranks, and the fewest that go on if others are lost; 0 is never."""

    most: int
    least: int = 0


@dataclass(frozen=True)
class World:
    """This process among all processes of a run; one process is one rank.

    `source` is what launched it: "flags", "torchrun", "mpirun", "slurm", "alone", BY_HAND where no
    launcher has set the two, or WITHOUT_SRUN for a job of several tasks that runs no `srun`.
    `store_is_served` is true when a launcher already serves the rendezvous store (torchrun's
    agent), so rank 0 must not. `token` is a word that all ranks of one job share, so that two jobs
    cannot mix by mistake. `least` is the fewest ranks that an elastic run goes on with, and 0
    elsewhere; in one that has lost ranks, this one was launched as `launched_rank`.
    """

    rank: int = 0
    size: int = 1
    master_address: str = DEFAULT_MASTER
    master_port: int = DEFAULT_PORT
    source: str = "alone"
    store_is_served: bool = False
    attempt: int = 0
    token: str = ""
    least: int = 0
    launched_rank: int | None = None

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def is_elastic(self) -> bool:
        """True if the run goes on when ranks are lost, as --num-nodes MIN:MAX says."""
        return self.least > 0

    @property
    def name(self) -> int:
        """The rank that this process was launched as: what files and sentences call it."""
        return self.rank if self.launched_rank is None else self.launched_rank


def detect_world(
    environment: Mapping[str, str] = os.environ,
    *,
    master_ip: str | None = None,
    num_nodes: Nodes | int | None = None,
    rank: int | None = None,
    master_port: int | None = None,
) -> World:
    """The World of this process: from explicit flags, else torchrun, mpirun, SLURM, else alone.

    Under mpirun and SLURM `master_ip` may be given by itself. Raises UsageError for half a launch
    (say, a rank without a world size), naming what is missing, for variables that an earlier launch
    has left behind, and for a rank outside the world.
    """
    if isinstance(num_nodes, int):
        num_nodes = Nodes(num_nodes)
    is_launched = _is_srun_task(environment) or _mpi_variables(environment) is not None
    if num_nodes is not None or rank is not None or (master_ip is not None and not is_launched):
        world = _from_flags(master_ip, num_nodes, rank)
    elif "RANK" in environment or "WORLD_SIZE" in environment:
        world = _from_torchrun(environment)
    elif is_launched:
        world = _from_launcher(environment, master_ip)
    else:
        world = _alone(environment)
    port = master_port if master_port is not None else _number(
        environment, "MASTER_PORT", DEFAULT_PORT)
    return _checked(replace(world, master_port=port, token=environment.get("RUN_TOKEN", "")))


def _from_flags(master_ip: str | None, num_nodes: Nodes | None, rank: int | None) -> World:
    given = {"--master-ip": master_ip, "--num-nodes": num_nodes, "--rank": rank}
    missing = [flag for flag, value in given.items() if value is None]
    if num_nodes is None or (missing and num_nodes.most != 1):
        present = [flag for flag, value in given.items() if value is not None]
        raise UsageError(f"{' and '.join(present)} given without {' and '.join(missing)}: "
                         "a node needs all three (or none, under torchrun, srun or mpirun)")
    return World(rank or 0, num_nodes.most, master_ip or DEFAULT_MASTER, source="flags",
                 least=num_nodes.least)


def _from_torchrun(environment: Mapping[str, str]) -> World:
    for variable, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if variable not in environment:
            raise UsageError(f"the environment sets {other} but not {variable}: a launcher sets "
                             f"both, so unset {other}, which may be left over, or set {variable}")
    world = World(_number(environment, "RANK"), _number(environment, "WORLD_SIZE"),
                  environment.get("MASTER_ADDR", DEFAULT_MASTER),
                  source="torchrun" if "LOCAL_RANK" in environment else BY_HAND,
                  store_is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                  attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0))
    if world.source == BY_HAND:
        _require_not_left_over(world, environment)
    return world


def _require_not_left_over(world: World, environment: Mapping[str, str]) -> None:
    """Every rank that mpirun or srun starts inherits a RANK that is left in the environment."""
    if not (_is_srun_task(environment) or _mpi_variables(environment)):
        return
    started = _from_launcher(environment, world.master_address)
    if (started.rank, started.size) != (world.rank, world.size):
        raise UsageError(f"RANK={world.rank} and WORLD_SIZE={world.size} are left over in the "
                         f"environment, but {started.source} started rank {started.rank} of "
                         f"{started.size}: unset RANK and WORLD_SIZE")


def _from_launcher(environment: Mapping[str, str], master: str | None) -> World:
    """Reads the World from mpirun's or srun's variables; `master` is rank 0's address by flag."""
    master = master or environment.get("MASTER_ADDR")
    variables = _mpi_variables(environment)
    if variables is None:
        nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", ""))
        return World(_number(environment, "SLURM_PROCID"), _slurm_size(environment),
                     master or first_slurm_node(nodes), source="slurm",
                     attempt=_number(environment, "SLURM_RESTART_COUNT", 0))
    rank, size, here = (_number(environment, name, 0) for name in variables)
    if master is None and size > 1 and here != size:
        raise UsageError(f"mpirun started {size} ranks on several machines, and nothing says where "
                         "rank 0 is: give --master-ip as rank 0's address in the cluster, or set "
                         "MASTER_ADDR for every rank")
    return World(rank, size, master or DEFAULT_MASTER, source="mpirun")


def _alone(environment: Mapping[str, str]) -> World:
    if "PMIX_RANK" in environment:
        raise UsageError("a launcher has set PMIX_RANK, but nothing says how many ranks there are: "
                         "start them with mpirun or srun, or give each --master-ip, --num-nodes "
                         "and --rank")
    several = any(_number(environment, variable, 1) > 1
                  for variable in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"))
    return World(source=WITHOUT_SRUN if several else "alone")


def _mpi_variables(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The names of mpirun's variables; None where it has set none. srun may set PMI's too."""
    variables = next((names for names in MPI_VARIABLES
                      if names[0] in environment and names[1] in environment), None)
    if variables and _is_srun_task(environment) and (
            _number(environment, variables[0]), _number(environment, variables[1])) == (
            _number(environment, "SLURM_PROCID"), _slurm_size(environment)):
        return None
    return variables


def _is_srun_task(environment: Mapping[str, str]) -> bool:
    return "SLURM_PROCID" in environment and _number(
        environment, "SLURM_STEP_ID", NO_TASK_OF_SRUN) < NO_TASK_OF_SRUN


def _slurm_size(environment: Mapping[str, str]) -> int:
    return _number(environment, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment
                   else "SLURM_NTASKS")


def first_slurm_node(node_list: str) -> str:
    """The first host of SLURM's compressed list: "gpu[03-05,9],login" gives "gpu03"."""
    match = re.match(r"([^,\[]+)(?:\[([0-9]+))?", node_list)
    if not match:
        raise UsageError(f"SLURM_NODELIST is {node_list!r}, which names no host")
    return match.group(1) + (match.group(2) or "")


def _number(environment: Mapping[str, str], variable: str, default: int | None = None) -> int:
    text = environment.get(variable, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        problem = "is not set" if text is None else f"is {text!r}, not a whole number"
        raise UsageError(f"the environment variable {variable} {problem}") from None


def _checked(world: World) -> World:
    if world.size < 1:
        raise UsageError(f"the number of nodes is {world.size}; it must be at least 1")
    if not 0 <= world.rank < world.size:
        raise UsageError(f"rank {world.rank} is outside the world: with {world.size} nodes "
                         f"the ranks are 0 to {world.size - 1}")
    if not 1 <= world.master_port <= 65535:
        raise UsageError(f"master port {world.master_port} is not a port (1 to 65535)")
    _require_address_alone(world.master_address)
    return replace(world, master_address=world.master_address.strip("[]"))  # as in [fd00::1]


def _require_address_alone(master: str) -> None:
    """Raises UsageError for a URL, and for an address with a port."""
    match = ADDRESS.fullmatch(master)
    if match and match[1] != master:
        port = f", and the port with --master-port {match[2]}" if match[2] else ""
        raise UsageError(f"the master address is to be an address alone, and not {master!r}: give "
                         f"--master-ip {match[1].strip('[]')}{port}")
