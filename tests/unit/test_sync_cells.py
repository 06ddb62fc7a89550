"""The record that benchmarks/sync.py keeps of a cell, and of the kernel's counters.

Mutations that turn this red: the fastest rank's step for the slowest's; count loopback; take
headers for payload; go on with a grid made in another way; skip a cell of another rate; leave out
what the training loop asks of a run (`metric`) in a Turn; loading data no part of forward; a turn
of the first rank alone in `measure`.
"""

import json
import os
import sys

import pytest
import torch

from benchmarks import sync
from benchmarks.sync_tables import bound, bytes_table, cell_table, largest_gap
from common.cluster.node import Node
from common.core.failures import DataError, UsageError
from common.options.command_line import parse_command_line
from studies.choosing.counters import Counters, read_counters
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

DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0
  eth0: 1000 10 0 0 0 0 0 0 20000 20 0 0 0 0 0 0
  eth1:    5  1 0 0 0 0 0 0     7  1 0 0 0 0 0 0
"""


class Unmeasured:
    """A contestant that is not needed to measure."""

    gradient_bytes = [4, 8]

    def __init__(self, name: str) -> None:
        self.name = name


def turn(seconds: float, sent: int, ready=()) -> dict:
    return {"step": seconds, "ready": list(ready), "processor": 1.5 * seconds,
            "phases": {"data": 0.05 * seconds, "forward": 0.2 * seconds, "sync": 0.0,
                       "backward": 0.5 * seconds, "update": 0.1},
            "bytes": {"counted": sent, "wire": 1.1 * sent, "payload_sent": sent,
                      "payload_received": sent}}


def test_a_step_is_as_long_as_its_slowest_rank_takes():
    found = measured_cell(2, [Unmeasured(COMPUTE_ONLY), Unmeasured("all-reduce")], [
        [[turn(1.0, 0, (0.5, 0.1)), turn(3.0, 0, (0.5, 0.1))],
         [turn(2.0, 0, (0.7, 0.3)), turn(4.0, 0, (0.7, 0.3))]],
        [[turn(2.0, 100), turn(6.0, 300)]] * 2])
    assert found["variants"][COMPUTE_ONLY]["steps"] == [3.0, 4.0]
    assert exposed(found, "all-reduce") == 6.0 - 3.5
    assert found["ready"] == pytest.approx([0.6, 0.2]) and found["gradient_bytes"] == [4, 8]
    row = found["variants"]["all-reduce"]
    assert row["processor"] == 6.0
    assert row["phases"] == {"forward": 1.0, "backward": 2.0, "sync": 0.0, "update": 0.1}
    assert [each["counted"] for each in row["bytes"]] == [100, 300]
    assert "| all-reduce | 6.000 | 6.000 to 6.000 | 2.500 |" in cell_table(found | {"rate": "none"})


def test_the_kernels_counters_without_loopback_and_headers(tmp_path):
    path = tmp_path / "dev"
    path.write_text(DEVICES)
    counters = read_counters(path)
    assert counters == Counters(sent=20007, sent_packets=21, received=1005, received_packets=11)
    more = counters - Counters(7, 1, 5, 1)
    assert (more.payload_sent, more.payload_received) == (20000 - 66 * 20, 1000 - 66 * 10)


def test_this_machine_has_counters():
    assert read_counters().sent >= 0


@pytest.mark.parametrize("name, ranks, moved", [
    ("gather-scatter", 4, 6 * 36e6), ("gather-scatter-pipelined", 4, 3 * 36e6),
    ("all-reduce", 4, 1.5 * 36e6), ("Part Three", 2, 36e6), (COMPUTE_ONLY, 4, 0.0)])
def test_bounds_are_the_busiest_links_bytes(name, ranks, moved):
    found = planted.cell(ranks, "1gbit")
    assert bound(found, name) == pytest.approx(moved / 125e6 * 1514 / 1448, rel=0.04)


def test_the_byte_table_has_theory_both_counts_and_the_roots_share():
    found = planted.cell(4, "1gbit")
    for name in list(found["variants"]):
        if name not in (COMPUTE_ONLY, "gather-scatter"):
            del found["variants"][name]
    sends = [108e6, 36e6, 36e6, 36e6]
    found["variants"]["gather-scatter"]["bytes"] = [
        {"counted": each, "payload_sent": 1.01 * each, "payload_received": each, "wire": each}
        for each in sends]
    assert ("| gather-scatter | 108.0 | 108.0 | 109.1 | 108.0 | +1.0 % | 50 % |"
            in bytes_table(found))
    gap, where = largest_gap([found])
    assert gap == pytest.approx(0.01) and says(where, "gather-scatter", "rank")
    del found["variants"][COMPUTE_ONLY]
    for each in found["variants"]["gather-scatter"]["bytes"]:
        each["counted"] = 0  # as a user's own strategy does
    gap, where = largest_gap([found])
    assert gap == 0.0 and "rank" not in where


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
    assert len(alone["steps"]) == 3 and alone["processor"] > 0
    assert alone["phases"]["backward"] > alone["phases"]["sync"]
    assert len(found["ready"]) == len(found["gradient_bytes"]) == len(contestant._trained)
    assert min(found["ready"]) > 0
    assert alone["bytes"][0]["counted"] == 0
