"""Freed memory stays with a run's process, for the next step.

Mutations that turn this red: set neither option, or only the threshold; leave the call out of
one_node, or out of joining a group.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from common.cluster.devices import keep_freed_memory
from tests.ranks import cluster, program, run_programs, run_ranks
from tests.workload import plant

MEGABYTES = 256


def resident() -> float:
    """This process's resident memory in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def kept_after(prepare: Callable[[], object]) -> float:
    """How many megabytes stay resident after as many were used and freed."""
    prepare()
    before = resident()
    block = torch.ones(MEGABYTES * 250_000)
    del block
    return resident() - before


@pytest.mark.parametrize(("prepare", "keeps"), [(bool, False), (keep_freed_memory, True)])
def test_what_is_freed_stays(prepare, keeps):
    kept, = run_ranks(1, kept_after, prepare)
    assert (kept > MEGABYTES / 2) == keeps


def plant_and_tell(path: Path) -> None:
    """The small workload; the file appears when the run asks for its memory to be kept."""
    from common.cluster import process_group
    plant()
    process_group.keep_freed_memory = path.touch


def test_every_part_asks_for_it(tmp_path):
    alone = program("PartOne", ["--workload", "small", "--output-dir", str(tmp_path)], tmp_path,
                    "alone", before=partial(plant_and_tell, tmp_path / "asked_alone"))
    pair = cluster("PartThree", 2, ["--workload", "small", "--output-dir", str(tmp_path)], tmp_path,
                   before={rank: partial(plant_and_tell, tmp_path / f"asked_{rank}")
                           for rank in range(2)})
    assert [each.code for each in run_programs([alone, *pair])] == [0, 0, 0]
    assert len(list(tmp_path.glob("asked_*"))) == 3
