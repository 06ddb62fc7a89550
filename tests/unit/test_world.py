"""Who am I: flags first, then torchrun, then SLURM, then alone; half a launch is named."""

import pytest

from common.core.failures import UsageError
from common.core.world import World, detect_world, first_slurm_node

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
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


def test_a_slurm_batch_script_itself_is_alone():
    assert detect_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == World()


@pytest.mark.parametrize("nodes, first", [
    ("node7", "node7"), ("a,b", "a"), ("gpu[03-05]", "gpu03"), ("x[1,4],y", "x1"),
    ("h[12]", "h12")])
def test_first_slurm_node(nodes, first):
    assert first_slurm_node(nodes) == first


@pytest.mark.parametrize("environment, flags, words", [
    ({}, {"rank": 1}, ["--rank", "without", "--master-ip", "--num-nodes"]),
    ({}, {"num_nodes": 4, "master_ip": "10.0.0.1"}, ["without --rank"]),
    ({"RANK": "1"}, {}, ["RANK", "WORLD_SIZE"]),
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
