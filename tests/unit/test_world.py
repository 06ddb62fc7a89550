"""The rank of a process: flags first, then torchrun, mpirun, SLURM, then alone; or an error.

Mutations that turn this red: drop a row of MPI_VARIABLES, or `_from_launcher` from detect_world;
take any machine for rank 0's (no `here != size`); drop _require_not_left_over; drop the comparison
with srun's own numbers from _mpi_variables; take a batch script's SLURM_PROCID for a rank; drop
_require_address_alone.
"""

import pytest

from common.cluster.process_group import say_what_may_be_a_mistake
from common.core.failures import UsageError
from common.core.world import BY_HAND, WITHOUT_SRUN, World, detect_world, first_slurm_node
from common.options.command_line import parse_command_line

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234",
            "LOCAL_RANK": "1"}
BY_OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
              "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
BY_MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
STALE = {"RANK": "0", "WORLD_SIZE": "1"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0",
         "SLURM_NODELIST": "gpu[03-05,9],login"}


def test_alone_without_flags_and_environment():
    assert detect_world({}) == World()


def test_flags_come_before_the_environment():
    world = detect_world(TORCHRUN | SLURM, master_ip="10.9.9.9", num_nodes=2, rank=0)
    assert (world.rank, world.size, world.master_address) == (0, 2, "10.9.9.9")
    assert world.source == "flags"


def test_torchrun_comes_before_slurm():
    world = detect_world(TORCHRUN | SLURM)
    assert world == World(1, 4, "10.0.0.1", 1234, "torchrun")


def test_torchrun_defaults():
    world = detect_world({"RANK": "0", "WORLD_SIZE": "1"})
    assert (world.master_address, world.master_port) == ("127.0.0.1", 29500)


def test_torchruns_agent_serves_the_store_and_counts_restarts():
    world = detect_world(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True",
                                     "TORCHELASTIC_RESTART_COUNT": "2"})
    assert world.store_is_served and world.attempt == 2


def test_slurm():
    assert detect_world(SLURM) == World(2, 3, "gpu03", 29500, "slurm")


@pytest.mark.parametrize("environment", [BY_OPENMPI, BY_MPICH])
def test_mpirun_on_one_machine(environment):
    assert detect_world(environment) == World(1, 2, source="mpirun")


@pytest.mark.parametrize("environment", [BY_OPENMPI, BY_MPICH])
def test_mpirun_on_several_machines_must_be_told_where_rank_0_is(environment):
    spread = environment | {list(environment)[2]: "1"}
    with pytest.raises(UsageError, match="started 2 ranks on several machines.*--master-ip"):
        detect_world(spread)
    assert detect_world(spread, master_ip="10.0.0.1") == World(1, 2, "10.0.0.1", source="mpirun")
    assert detect_world(spread | {"MASTER_ADDR": "10.0.0.2"}).master_address == "10.0.0.2"


def test_inside_a_slurm_job_mpirun_counts_the_ranks():
    assert detect_world(SLURM | BY_OPENMPI).source == "mpirun"
    assert detect_world(SLURM | {"PMI_RANK": "2", "PMI_SIZE": "3"}) == detect_world(SLURM)  # srun's


def test_under_srun_the_masters_address_may_be_given_alone():
    assert detect_world(SLURM, master_ip="10.0.0.1") == World(2, 3, "10.0.0.1", source="slurm")


@pytest.mark.parametrize("environment, words", [
    (BY_OPENMPI, "mpirun started rank 1 of 2"), (BY_MPICH, "mpirun started rank 1 of 2"),
    (SLURM, "slurm started rank 2 of 3")])
def test_a_rank_left_over_in_the_environment_is_named(environment, words):
    with pytest.raises(UsageError, match=f"RANK=0 and WORLD_SIZE=1 are left over.*{words}: unset"):
        detect_world(environment | STALE)
    assert detect_world(environment | STALE | {"LOCAL_RANK": "0"}).size == 1  # torchrun below it
    assert detect_world(environment, master_ip="h", num_nodes=1, rank=0).source == "flags"


def test_rank_and_world_size_without_a_launcher_are_called_what_they_are(monkeypatch, capsys):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(UsageError, match="in the environment say .* one of 4 processes: unset"):
        parse_command_line("PartOne", [])
    settings, world = parse_command_line("PartThree", [])
    assert world.source == BY_HAND
    say_what_may_be_a_mistake(world, settings)
    assert "this is rank 1 of 4, with rank 0 at 127.0.0.1: unset them" in capsys.readouterr().out


@pytest.mark.parametrize("environment", [
    {"SLURM_NTASKS": "4"}, {"SLURM_JOB_NUM_NODES": "2"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}])
def test_several_slurm_tasks_without_srun_are_refused(environment, monkeypatch):
    assert detect_world(environment) == World(source=WITHOUT_SRUN)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for part in ("PartTwo", "PartThree", "Preflight"):
        with pytest.raises(UsageError, match="write srun before the command"):
            parse_command_line(part, [])
        assert parse_command_line(part, ["--num-nodes", "1"])[1].size == 1
    assert parse_command_line("PartOne", [])[1].size == 1


@pytest.mark.parametrize("nodes, first", [
    ("node7", "node7"), ("a,b", "a"), ("gpu[03-05]", "gpu03"), ("x[1,4],y", "x1"),
    ("h[12]", "h12")])
def test_first_slurm_node(nodes, first):
    assert first_slurm_node(nodes) == first


@pytest.mark.parametrize("environment, flags, words", [
    ({}, {"rank": 1}, ["--rank", "without", "--master-ip", "--num-nodes"]),
    ({}, {"num_nodes": 4, "master_ip": "10.0.0.1"}, ["without --rank"]),
    ({}, {"master_ip": "10.0.0.1"}, ["without --num-nodes and --rank"]),
    ({"RANK": "1"}, {}, ["RANK", "WORLD_SIZE", "left over"]),
    ({"PMIX_RANK": "1"}, {}, ["PMIX_RANK", "how many ranks", "mpirun"]),
    ({"WORLD_SIZE": "4"}, {}, ["WORLD_SIZE", "not RANK"]),
    ({"RANK": "one", "WORLD_SIZE": "4"}, {}, ["RANK", "'one'", "whole number"]),
    ({"RANK": "4", "WORLD_SIZE": "4"}, {}, ["rank 4", "outside", "0 to 3"]),
    ({}, {"master_ip": "h", "num_nodes": 0, "rank": 0}, ["number of nodes is 0"]),
    ({}, {"master_ip": "h", "num_nodes": 2, "rank": -1}, ["rank -1", "0 to 1"]),
    ({"MASTER_PORT": "70000"}, {}, ["70000"]),
    ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, {}, ["SLURM_NODELIST"]),
])
def test_mistakes_are_named(environment, flags, words):
    with pytest.raises(UsageError) as raised:
        detect_world(environment, **flags)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("master, told", [
    ("10.0.0.1:29501", "--master-ip 10.0.0.1, and the port with --master-port 29501"),
    ("http://10.0.0.1", "--master-ip 10.0.0.1"),
    ("tcp://node0:29500/", "--master-ip node0, and the port with --master-port 29500"),
    ("[fd00::1]:29500", "--master-ip fd00::1, and the port with --master-port 29500"),
    ("10.0.0.1/24", "--master-ip 10.0.0.1")])
def test_an_address_in_other_words_is_answered_with_the_flags(master, told):
    for launch in (lambda: detect_world({}, master_ip=master, num_nodes=2, rank=0),
                   lambda: detect_world(TORCHRUN | {"MASTER_ADDR": master})):
        with pytest.raises(UsageError) as raised:
            launch()
        assert str(raised.value).endswith(f"give {told}") and repr(master) in str(raised.value)


@pytest.mark.parametrize("master", ["10.0.0.1", "fd00::1", "[fd00::1]", "node-0.cluster", "::1"])
def test_an_address_alone_is_taken(master):
    world = detect_world({}, master_ip=master, num_nodes=2, rank=0)
    assert world.master_address == master.strip("[]")
