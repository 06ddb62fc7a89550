"""The record that benchmarks/sync.py keeps of a cell.

Mutations that turn this red: the fastest rank's step for the slowest's; go on with a grid made in
another way; skip a cell of another rate; leave out what the training loop asks of a run (`metric`)
in a Turn; loading data no part of forward; a turn of the first rank alone in `measure`.
"""

import json
import os
import sys

import pytest
import torch
import torch.distributed as dist

from benchmarks import sync
from benchmarks.sync_tables import bound, cell_table
from common.cluster.node import Node
from common.core.failures import DataError, UsageError
from common.core.world import World
from common.options.command_line import parse_command_line
from studies.choosing.measuring import Contestant, measure, measured_cell
from studies.choosing.worker import random_images
from studies.prediction.grid import (
    COMPUTE_ONLY,
    exposed,
    load_grid,
    open_grid,
    save_grid,
)
from tests import grid as planted
from tests.facts import says
from tests.ranks import run_ranks


class Unmeasured:
    """A contestant that is not needed to measure."""

    gradient_bytes = [4, 8]

    def __init__(self, name: str) -> None:
        self.name = name


def turn(seconds: float, ready=()) -> dict:
    return {"step": seconds, "ready": list(ready),
            "phases": {"data": 0.05 * seconds, "forward": 0.2 * seconds, "sync": 0.0,
                       "backward": 0.5 * seconds, "update": 0.1}}


def test_a_step_is_as_long_as_its_slowest_rank_takes():
    found = measured_cell(2, [Unmeasured(COMPUTE_ONLY), Unmeasured("all-reduce")], [
        [[turn(1.0, (0.5, 0.1)), turn(3.0, (0.5, 0.1))],
         [turn(2.0, (0.7, 0.3)), turn(4.0, (0.7, 0.3))]],
        [[turn(2.0), turn(6.0)]] * 2])
    assert found["variants"][COMPUTE_ONLY]["steps"] == [3.0, 4.0]
    assert exposed(found, "all-reduce") == 6.0 - 3.5
    assert found["ready"] == pytest.approx([0.6, 0.2]) and found["gradient_bytes"] == [4, 8]
    row = found["variants"]["all-reduce"]
    assert row["phases"] == {"forward": 1.0, "backward": 2.0, "sync": 0.0, "update": 0.1}
    assert "| all-reduce | 6.000 | 6.000 to 6.000 | 2.500 |" in cell_table(found | {"rate": "none"})


@pytest.mark.parametrize("name, ranks, moved", [
    ("gather-scatter", 4, 6 * 36e6), ("gather-scatter-pipelined", 4, 3 * 36e6),
    ("all-reduce", 4, 1.5 * 36e6), ("Part Three", 2, 36e6), (COMPUTE_ONLY, 4, 0.0)])
def test_bounds_are_the_busiest_links_bytes(name, ranks, moved):
    found = planted.cell(ranks, "1gbit")
    assert bound(found, name) == pytest.approx(moved / 125e6 * 1514 / 1448, rel=0.04)


def test_a_grid_is_kept_and_gone_on_with_only_if_made_in_the_same_way(tmp_path):
    path, grid = tmp_path / "grid.json", planted.grid()
    assert open_grid(path, grid["made_on"]) == {"made_on": grid["made_on"], "cells": []}
    save_grid(path, grid)
    assert [each["rate"] for each in load_grid(path)["cells"]] == [
        rate for _, rate in planted.CELLS]
    assert len(open_grid(path, grid["made_on"])["cells"]) == len(planted.CELLS)
    with pytest.raises(UsageError) as refused:
        open_grid(path, {**grid["made_on"], "precision": "bf16"})
    assert says(refused.value, path, "precision")
    for text in ("{", "{}", '{"made_on": {"cores": 2}, "cells": [{"nodes": 2}]}'):
        path.write_text(text)
        with pytest.raises(DataError) as refused:
            load_grid(path)
        assert says(refused.value, path, "benchmarks/sync.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_second_call_measures_what_is_missing(tmp_path, monkeypatch, capsys):
    path, asked = tmp_path / "grid.json", []

    def run_cell(nodes, rate, options):
        asked.append((nodes, rate))
        return planted.cell(nodes, rate)

    monkeypatch.setattr(sync, "run_cell", run_cell)
    for rates in (["1gbit"], ["1gbit", "none"]):
        monkeypatch.setattr(sys, "argv", ["sync.py", "--json", str(path), "--nodes", "2", "3",
                                          "--rates", *rates])
        sync.main()
    assert asked == [(2, "1gbit"), (3, "1gbit"), (2, "none"), (3, "none")]
    assert len(json.loads(path.read_text())["cells"]) == 4
    assert sum(says(line, "nodes", "none", "n = 3")
               for line in capsys.readouterr().out.splitlines()) == 2


def test_turns_are_trained_by_the_loop_that_trains_everything():
    settings, world = parse_command_line("PartTwo", ["--num-nodes", "1", "--batch-size", "4"])
    node = Node(world, torch.device("cpu"), 1)
    contestant = Contestant(COMPUTE_ONLY, settings, random_images(4), node)
    before = next(contestant._model.parameters()).detach().clone()
    rounds, absent = measure([contestant, None], [2, 1], 3, node)
    assert (next(contestant._model.parameters()) != before).any()
    assert absent == [[], [], []] and [len(turns) for turns in rounds] == [1, 1, 1]
    found = measured_cell(1, [contestant], [rounds])
    alone = found["variants"][COMPUTE_ONLY]
    assert len(alone["steps"]) == 3
    assert alone["phases"]["backward"] > alone["phases"]["sync"]
    assert len(found["ready"]) == len(found["gradient_bytes"]) == len(contestant._trained)
    assert min(found["ready"]) > 0


class OfItsRank:
    """A contestant whose steps are as long as its rank says."""

    def warm_up(self) -> None:
        """Nothing."""

    def turn(self, steps: int) -> dict:
        return {"step": float(dist.get_rank()), "of": steps}


def measured_here() -> list:
    node = Node(World(dist.get_rank(), 2), torch.device("cpu"), 1)
    return measure([OfItsRank(), OfItsRank() if node.world.is_leader else None], [3, 1], 2, node)


def test_the_leader_has_each_ranks_turn_of_every_round():
    leaders, others = run_ranks(2, measured_here)
    zero, one = {"step": 0.0, "of": 3}, {"step": 1.0, "of": 3}
    assert leaders == [[[zero, one]] * 2, [[{"step": 0.0, "of": 1}]] * 2] and others == []
