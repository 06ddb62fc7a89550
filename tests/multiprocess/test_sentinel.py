"""The classic faults of data-parallel training stop the run within N steps, and are named.

Each fault is planted in the literal main. Mutations that turn this red: return early from
_check_samples or _check_weights; compare rank 0 with itself; drop the call in Run.finish_step;
compare every second step; draw a random number in a check.
"""

import dataclasses
import re

import numpy as np
import pytest
import torch

from common.core.events import read_events
from common.data.epoch_plan import fingerprint
from common.run import checkpoint_file
from common.run.sentinel import Sentinel
from tests.facts import says
from tests.ranks import cluster, error_lines, run_programs
from tests.workload import SMALL, plant

EVERY = 4
PLACES = [*(f"epoch 1 iteration {number}" for number in range(1, 9)),
          *(f"epoch 2 iteration {number}" for number in range(9)), "epoch 3 iteration 0"]


def same_samples_on_all_ranks() -> None:
    from common import setup
    from common.data.epoch_plan import shard_range

    plant()
    create_loader = setup.create_loader

    def as_rank_zero(settings, dataset, node):
        return dataclasses.replace(create_loader(settings, dataset, node), shards=shard_range(0, 3))
    setup.create_loader = as_rank_zero


def no_handshake() -> None:
    from common.cluster import process_group

    plant()
    process_group.Node.agree = lambda *_: None  # it would find the fault first


def other_initial_weights() -> None:
    from tests import small

    no_handshake()
    initialise = small.SmallNet.__init__

    def changed(self, *arguments) -> None:
        initialise(self, *arguments)
        self.layers[0].weight.data[0, 0, 0, 0] += 1e-6
    small.SmallNet.__init__ = changed


def one_missed_synchronisation() -> None:
    from PartTwo import by_hand

    plant()
    average = by_hand.Flat.average
    calls = []

    def all_but_the_sixth(self, gradients) -> None:
        calls.append(1)
        if len(calls) != 6:
            average(self, gradients)
    by_hand.Flat.average = all_but_the_sixth


@pytest.mark.parametrize("fault, ranks, steps, facts", [
    (same_samples_on_all_ranks, (0, 1, 2), 4, ["rank 1", "samples", "iteration 4"]),
    (other_initial_weights, (2,), 4, ["rank 2", "1 of 10", "layers.0.weight", "iteration 4"]),
    (one_missed_synchronisation, (0, 1, 2), 8, ["rank 1", 10, "layers.0.weight", "iteration 8"]),
])
def test_a_classic_fault_is_caught_and_named(fault, ranks, steps, facts, tmp_path):
    flags = [*SMALL, "--sync", "all-reduce", "--check-every", str(EVERY), "--output-dir",
             str(tmp_path / "out")]
    before = dict.fromkeys(range(3), no_handshake) | dict.fromkeys(ranks, fault)
    outcomes = run_programs(cluster("PartTwo", 3, flags, tmp_path, before=before))
    for outcome in outcomes:
        assert outcome.code == 3 and "Traceback" not in outcome.output, outcome.output
        error, = error_lines(outcome.output)
        assert says(error, *facts), error
    log = tmp_path / "out" / "PartTwo" / "all-reduce" / "metrics_rank0.jsonl"
    assert len(list(read_events(log, "step"))) == steps


def counting() -> None:
    """Each comparison of rows that were gathered is printed, with how many numbers it looked at."""
    plant()
    compare = Sentinel._check_weights

    def noted(self, rows, names, position) -> None:
        compare(self, rows, names, position)
        print(f"\ncompared {rows.numel()} numbers before {position}")
    Sentinel._check_weights = noted


@pytest.mark.parametrize("part, more", [("PartTwo", ["--sync", "all-reduce"]), ("PartThree", [])])
def test_a_sound_run_is_compared_after_every_step_and_learns_the_same(part, more, tmp_path):
    ends = []
    for every in ("1", "0"):
        flags = [*SMALL, *more, "--check-every", every, "--output-dir", str(tmp_path / every)]
        outcomes = run_programs(cluster(part, 3, flags, tmp_path,
                                        before=dict.fromkeys(range(3), counting)))
        compared = [re.findall("compared 30 numbers before (.*)", each.output)
                    for each in outcomes]
        assert [each.code for each in outcomes] == [0, 0, 0], outcomes
        assert not any("warning" in each.output or "error" in each.output for each in outcomes)
        assert compared == [PLACES * (every == "1")] * 3
        log, = (tmp_path / every).rglob("metrics_rank1.jsonl")
        ends.append([event["loss"] for event in read_events(log, "step")])
        saved, = (tmp_path / every).rglob("Epoch_2.pt")
        ends.append(checkpoint_file.read(saved)["model_state_dict"])
    losses, weights, *others = ends
    assert losses == others[0] and len(losses) == len(PLACES)
    assert weights.keys() == others[1].keys()
    assert all(torch.equal(weights[name], others[1][name]) for name in weights)


def test_the_fingerprint_is_of_the_set_not_of_the_order_or_the_cut():
    indices = np.random.default_rng(0).permutation(1000)
    whole = fingerprint(indices)
    assert fingerprint(np.sort(indices)) == whole
    assert (fingerprint(indices[:300]) + fingerprint(indices[300:])) % 2**64 == whole
    assert fingerprint(np.append(indices[1:], indices[1])) != whole
