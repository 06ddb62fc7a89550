"""A failure or a hang of one rank fails the test and leaves no process behind.

Mutations that turn this red: `failures[0]` for the first in time in _results; no deadline there; no
kill.
"""

import multiprocessing
import pickle
import time

import pytest
import torch.distributed as dist

from common.core.failures import PeerLost
from studies.proof import ranks
from tests.ranks import run_ranks


def own_rank(offset: int) -> int:
    return dist.get_rank() + offset


def fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise RuntimeError("rank one is out of paper")
    dist.barrier()


def hang_on_rank_one() -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)


def test_results_come_in_rank_order():
    assert run_ranks(3, own_rank, 10) == [10, 11, 12]


@pytest.mark.parametrize(("function", "told"), [
    (fail_on_rank_one, r"\brank 1\b.*: rank one is out of paper"),
    (hang_on_rank_one, r"\branks \[0, 1\]")])
def test_a_failing_or_hanging_rank_is_reported_and_ended(function, told):
    with pytest.raises(PeerLost, match=told):
        run_ranks(2, function, seconds=5)
    assert not multiprocessing.active_children()


def test_of_failures_that_come_together_the_first_is_raised():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    for (_, sender), when in zip(pipes, (2.0, 1.0), strict=True):
        sender.send_bytes(pickle.dumps((None, (when, f"at {when}", None, ""))))
    with pytest.raises(PeerLost, match=r"\brank 1\b.*: at 1.0"):
        ranks._results([receiver for receiver, _ in pipes], float("inf"))
