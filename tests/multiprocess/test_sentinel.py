"""The classic faults of data-parallel training stop the run within N steps, and are named.

Each fault is planted in the literal main. Mutations that turn this red: return early from
_check_samples or _check_weights; compare rank 0 with itself; drop the call in Run.finish_step.
"""

import dataclasses

import numpy as np
import pytest
import torch

from common.core.events import read_events
from common.data.epoch_plan import fingerprint
from common.run.sentinel import checksums
from tests.ranks import cluster, error_lines, run_programs
from tests.workload import SMALL, plant

EVERY = 4


def same_samples_on_all_ranks() -> None:
    from common import setup
    from common.data.epoch_plan import share_of

    plant()
    create_loader = setup.create_loader

    def as_rank_zero(settings, dataset, node):
        return dataclasses.replace(create_loader(settings, dataset, node), share=share_of(0, 3))
    setup.create_loader = as_rank_zero


def no_handshake() -> None:
    from common.cluster import process_group

    plant()
    process_group.Node.agree = lambda self, topic, value: None  # it would find the fault first


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


@pytest.mark.parametrize("fault, ranks, steps, words", [
    (same_samples_on_all_ranks, (0, 1, 2), 4, ["rank 1", "other samples than its shard"]),
    (other_initial_weights, (2,), 4, ["rank 2", "1 of 10 tensors", "layers.0.weight"]),
    (one_missed_synchronisation, (0, 1, 2), 8, ["rank 1", "of 10 tensors differ"]),
])
def test_a_classic_fault_is_caught_and_named(fault, ranks, steps, words, tmp_path):
    flags = [*SMALL, "--sync", "all-reduce", "--check-every", str(EVERY), "--output-dir",
             str(tmp_path / "out")]
    before = dict.fromkeys(range(3), no_handshake) | dict.fromkeys(ranks, fault)
    outcomes = run_programs(cluster("PartTwo", 3, flags, tmp_path, before=before))
    for outcome in outcomes:
        assert outcome.code == 3 and "Traceback" not in outcome.output, outcome.output
        error, = error_lines(outcome.output)
        assert all(word in error for word in words), error
    log = tmp_path / "out" / "PartTwo" / "all-reduce" / "metrics_rank0.jsonl"
    assert len(list(read_events(log, "step"))) == steps


def test_a_sound_run_is_left_alone(tmp_path):
    flags = [*SMALL, "--check-every", "1", "--output-dir", str(tmp_path / "out")]
    for part in ("PartTwo", "PartThree"):
        outcomes = run_programs(cluster(part, 3, flags, tmp_path,
                                        before=dict.fromkeys(range(3), plant)))
        assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes


def test_the_checksum_shows_any_one_bit():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        weights = torch.randn(5, 7, dtype=dtype)
        before = checksums([weights, weights])
        words = weights.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
        for bit in range(8 * dtype.itemsize - 1):
            words[3, 4] ^= 1 << bit
            assert checksums([weights])[0] != before[0]
            words[3, 4] ^= 1 << bit
        assert torch.equal(checksums([weights, weights]), before)


def test_the_fingerprint_is_of_the_set_not_of_the_order_or_the_cut():
    indices = np.random.default_rng(0).permutation(1000)
    whole = fingerprint(indices)
    assert fingerprint(np.sort(indices)) == whole
    assert (fingerprint(indices[:300]) + fingerprint(indices[300:])) % 2**64 == whole
    assert fingerprint(np.append(indices[1:], indices[1])) != whole


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_the_checksum_of_complex_numbers_sees_both_parts(dtype):
    weights = torch.randn(5, dtype=dtype)
    first, second = checksums([weights, weights.conj()])
    assert first != second
    assert torch.equal(checksums([weights.conj().resolve_conj()])[0], second)
