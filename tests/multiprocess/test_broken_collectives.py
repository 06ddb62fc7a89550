"""A collective that another rank broke is told from an error that only speaks of gloo.

Mutations that turn this red, in is_broken_collective: `"gloo" in str(error)`; leave out DistError,
the type, or the number of the line.
"""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from common.cluster.board import is_broken_collective
from tests.ranks import run_ranks


def breaks(kind: str) -> bool:
    """Rank 1 leaves the group, or is late; whether rank 0 takes its error for another rank's."""
    group = dist.new_group(timeout=timedelta(seconds=5))
    row, is_broken = torch.ones(100_000), True
    if dist.get_rank() == 1 and kind != "late":
        dist.destroy_process_group(group)
    if dist.get_rank() == 0:
        try:
            for _ in range(100):
                if kind == "send":
                    dist.send(row, 1, group=group)
                else:
                    dist.all_reduce(row, group=group, async_op=True).wait()
            is_broken = False
        except Exception as error:
            is_broken = is_broken_collective(error)
    return is_broken


@pytest.mark.parametrize("kind", ["all-reduce", "send", "late"])
def test_gloos_own_errors_are_recognised(kind):
    assert run_ranks(2, breaks, kind)[0]


@pytest.mark.parametrize("error", [
    FileNotFoundError(2, "cannot open", "/data/igloo/labels.csv"),
    RuntimeError("cannot open /data/igloo/labels.csv"),
    RuntimeError("cannot open /home/gloo/labels.csv:12"),
    ValueError("line 3 of [/data/gloo/notes.cc:12] is no number"),
    RuntimeError("ProcessGroupGloo::allreduce: invalid scalar type"), None])
def test_a_name_is_no_broken_collective(error):
    assert not is_broken_collective(error)


def test_torchs_own_errors_of_a_group_are_recognised():
    assert is_broken_collective(dist.DistNetworkError("the socket has failed"))
