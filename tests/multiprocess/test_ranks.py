"""A failure or a hang of one rank fails the test and leaves no process behind."""

import multiprocessing
import time

import pytest
import torch.distributed as dist

from common.core.failures import PeerLost
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
    (fail_on_rank_one, "rank 1 failed: rank one is out of paper"),
    (hang_on_rank_one, r"no result of ranks \[0, 1\] in time")])
def test_a_failing_or_hanging_rank_is_reported_and_ended(function, told):
    with pytest.raises(PeerLost, match=told):
        run_ranks(2, function, seconds=5)
    assert not multiprocessing.active_children()
