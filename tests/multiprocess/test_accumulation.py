"""Accumulation and world size are interchangeable: K passes on one rank are K ranks.

Mutations that turn this red: forget the part's weight in micro_batches, or make more parts than
samples, or tell each the samples of all; zero the gradients in every pass; average in every pass;
log the last part's loss; one pass in experiment.accumulated.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from common.data.loaders import Batch
from common.options.command_line import parse_command_line
from common.step.accumulation import micro_batches
from studies.proof.experiment import accumulated, create_reference
from studies.proof.strategies import STRATEGIES, Strategy, alone
from studies.proof.trajectory import Problem, Trajectory, trajectory
from tests.multiprocess.prove_cases import small_problem
from tests.ranks import run_ranks
from tests.small_files import digits_as_mnist


def with_k(problem: Problem, passes: int) -> Problem:
    return replace(problem, settings=replace(problem.settings, accumulate=passes))


def learned(problem: Problem, strategy: Strategy) -> Trajectory:
    return trajectory(problem, strategy)


def gap(one: Trajectory, other: Trajectory, *names: str) -> float:
    return max(float((a - b).abs().max()) for name in names
               for a, b in zip(one[name], other[name], strict=True))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """mnist-cnn, which has dropout, and one batch of 256 samples."""
    folder = tmp_path_factory.mktemp("digits")
    digits_as_mnist(folder, train=300, test=10)
    settings, _ = parse_command_line("PartOne", [
        "--workload", "mnist-cnn", "--data-dir", str(folder), "--precision", "float64",
        "--batch-size", "256", "--max-iterations", "1", "--learning-rate", "0.1",
        "--threads", "1"])
    return Problem(settings)


def test_a_batch_of_256_in_4_passes_is_4_ranks(digits):
    alone_in_4, = run_ranks(1, learned, with_k(digits, 4), alone)
    for name in ("all-reduce", "ddp"):
        for four_ranks in run_ranks(4, learned, digits, STRATEGIES[name]):
            assert gap(alone_in_4, four_ranks, "loss", "first gradients", "weights") < 1e-9


@pytest.fixture(scope="module")
def one_pass():
    return run_ranks(1, learned, small_problem("float64", "frozen"), alone)[0]


@pytest.mark.parametrize("world_size, passes, name", [
    (1, 3, "all-reduce"), (1, 50, "all-reduce"), (2, 2, "gather-scatter"), (2, 3, "ddp"),
    (3, 2, "ddp"), (3, 2, "overlapped-all-reduce"),
    (3, 2, "cross-step-all-reduce")])
def test_any_ranks_and_passes_learn_what_one_rank_learns_in_one(world_size, passes, name,
                                                                one_pass):
    problem = with_k(small_problem("float64", "frozen"), passes)
    for result in run_ranks(world_size, learned, problem, STRATEGIES[name]):
        assert gap(one_pass, result, "loss", "first gradients", "last gradients",
                   "weights") < 1e-12


def test_with_local_batch_norm_too_k_passes_are_k_ranks_but_for_the_running_statistics():
    problem = small_problem("float64", "local")
    passes, = run_ranks(1, learned, with_k(problem, 2), alone)
    for ranks in run_ranks(2, learned, problem, STRATEGIES["all-reduce"]):
        assert gap(passes, ranks, "loss", "weights") < 1e-12
        assert gap(passes, ranks, "statistics") > 1e-6
    whole, = run_ranks(1, learned, problem, alone)
    assert gap(passes, whole, "weights") > 1e-6


def bytes_sent(problem: Problem) -> int:
    """Bytes that Part Three sends over all steps."""
    counters = []

    def counted(model, loader):
        wiring = STRATEGIES["ddp"](model, loader)
        counters.append(wiring.gradient_sync)
        return wiring
    trajectory(problem, counted)
    return counters[0].bytes_sent


def test_gradients_go_over_the_wire_once_a_step_however_many_passes():
    """Averaging in each pass would give the same numbers, at K times the bytes."""
    problem = small_problem("float64", "frozen", steps=2)
    assert run_ranks(2, bytes_sent, problem) == run_ranks(2, bytes_sent, with_k(problem, 3))


def test_parts_are_cut_as_shards_are_and_none_is_empty():
    batch = Batch(torch.arange(10.0).view(10, 1), torch.arange(10), Fraction(5, 4),
                  np.arange(10) + 100)
    parts = list(micro_batches(batch, 4))
    assert [len(part.targets) for part, _ in parts] == [3, 3, 2, 2]
    assert [is_last for _, is_last in parts] == [False, False, False, True]
    assert sum(part.weight for part, _ in parts) == pytest.approx(1.25)
    assert parts[1][0].indices.tolist() == [103, 104, 105]
    assert parts[1][0].weight == pytest.approx(1.25 * 3 / 10)
    few = Batch(batch.inputs[:2], batch.targets[:2])
    assert [len(part.targets) for part, _ in micro_batches(few, 4)] == [1, 1]


def test_memory_is_that_of_one_part(monkeypatch):
    """The model never sees more than its part of the batch."""
    from tests.small import SmallNet

    sizes, forward = [], SmallNet.forward
    monkeypatch.setattr(SmallNet, "forward", lambda self, images: (
        sizes.append(len(images)), forward(self, images))[1])
    monkeypatch.setattr("studies.proof.trajectory.dist.get_rank", lambda: 0)
    trajectory(with_k(small_problem("float64", "frozen", steps=1), 4), alone)
    assert sizes == [3, 3, 2, 2]


def test_the_proof_holds_passes_to_the_bounds_of_ranks(tmp_path):
    frozen = create_reference(small_problem("float64", "frozen"), tmp_path / "frozen")
    cases = list(accumulated(frozen, [2, 4]))
    assert [case.verdict for case in cases] == ["agrees", "agrees"]
    assert all(case.gaps["weights"].absolute > 0 for case in cases)  # the sums were cut otherwise
    synchronised = create_reference(small_problem("float64"), tmp_path / "synchronised")
    assert list(accumulated(synchronised, [2, 4])) == []
