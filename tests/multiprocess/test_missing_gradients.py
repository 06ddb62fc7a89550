"""Gradients missing, zero, frozen, shared or of other dtypes on some ranks: right, or said so.

Mutations that turn this red: MIN for MAX in Used; drop `fill` or `drop` from `completed`, what
`drop` gives back, `owed` in Flat, the zeros in OverlappedAllReduce._to_send; the dtype in
fill_buckets or FlatVirtual; drop `require_all` from Part Three, `require_known`, or
`trained_alike`; None for OwnStrategy's group; drop the zeros from LocalSGD.average.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from common.core.failures import PeerLost, Verdict
from common.settings.strategies import LOCAL_SYNC_NAMES, SYNC_NAMES, VIRTUAL_SYNC_NAMES
from PartTwo.strategies import SyncOptions
from tests.facts import says
from tests.multiprocess.missing_cases import TOLERANCES, Case, Reference, learned
from tests.ranks import run_ranks

SMALL = SyncOptions(bucket_mb=0.0003, every=1, iterations=4, rate=1.0, momentum=0.0)
IN_HOOKS = "tests/exercises/solutions.py:OverlappedAllReduce"  # which has no no_sync
OWN = ("examples/own_sync.py:MyAllReduce", "examples/own_sync.py:by_broadcast",
       "tests/exercises/solutions.py:GatherScatter", "tests/exercises/solutions.py:RingAllReduce",
       IN_HOOKS)
ROUNDING = [name for name in SYNC_NAMES if "per-tensor" not in name]
# name, on virtual nodes, wire
WAYS = [*((name, False, "float32") for name in (*SYNC_NAMES, *OWN)),
        *((name, True, "float32") for name in VIRTUAL_SYNC_NAMES),
        *((name, False, wire) for name in ROUNDING for wire in ("bf16", "fp16")),
        *((name, False, wire) for name in LOCAL_SYNC_NAMES
          for wire in ("float32", "bf16", "int8", "int4"))]
DDP = [("ddp", False, "float32"), ("ddp", True, "float32")]
ROUNDINGS = {"float32": 0.0, "fp16": 0.005, "bf16": 0.03, "int8": 0.05, "int4": 0.3}
SAID = 2, 3  # exit codes


def ways_of(case: Case) -> list[tuple[str, bool, str]]:
    return [way for way in WAYS if way[0] != IN_HOOKS or case.passes == 1]


def by_all(case: Case, ways: list[tuple[str, bool, str]]) -> list[list[Tensor]]:
    """The results of each way on this rank."""
    return [learned(case, name, virtual, SMALL._replace(wire=wire))
            for name, virtual, wire in ways]


@cache
def expected(case: Case, virtual: bool, zeros: bool) -> list[Tensor]:
    return Reference(case, virtual, zeros).learned()


def faults(case: Case, ways: list[tuple[str, bool, str]]) -> list[str]:
    """Differences from the reference, and between ranks, to the bit."""
    ranks = run_ranks(case.ranks, by_all, case, ways, seconds=60 + 5 * len(ways))
    return [f"{case} {way}: {what}"
            for way, by_rank in zip(ways, zip(*ranks, strict=True), strict=True)
            for what in differences(case, way, by_rank)]


def differences(case: Case, way: tuple[str, bool, str], by_rank) -> list[str]:
    name, virtual, wire = way
    found = []
    for number, wanted in enumerate(expected(case, virtual, name in LOCAL_SYNC_NAMES)):
        ours = [weights[number] for weights in by_rank]
        error = float((ours[0].double() - wanted).abs().max()) if wanted.numel() else 0.0
        if not error <= TOLERANCES[ours[0].dtype] + ROUNDINGS[wire]:
            found.append(f"cell {number} is off by {error:.2g}")
        if not all(torch.equal(each, ours[0]) for each in ours):
            found.append(f"cell {number} differs between ranks")
    return found


def faults_or_sentence(case: Case, way: tuple[str, bool, str]) -> tuple[list[str], str]:
    try:
        return faults(case, [way]), ""
    except Verdict as told:
        return ([] if told.exit_code in SAID else [f"{case} {way}: {told}"]), str(told)
    except PeerLost as lost:
        return [f"{case} {way}: {lost}; {lost.__cause__}"], ""


SOME = 3
SEEDS = [pytest.param(seed, marks=[] if seed < SOME else pytest.mark.slow) for seed in range(160)]
ODD_SEEDS = [pytest.param(seed, marks=[] if seed < 1001 else pytest.mark.slow)
             for seed in range(1000, 1040)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_strategy_learns_what_one_rank_learns(seed):
    assert faults(Case(seed), ways_of(Case(seed))) == []


@pytest.mark.parametrize("seed", SEEDS[1::4])
def test_ddp_does_or_says_why_not(seed):
    for way in DDP:
        wrong, told = faults_or_sentence(Case(seed), way)
        assert wrong == []
        assert not told or says(told, "gradient", "--sync overlapped-all-reduce")


@pytest.mark.parametrize("seed", ODD_SEEDS)
def test_what_ranks_freeze_otherwise_is_averaged_or_told(seed):
    case = Case(seed, is_uneven=True)
    for way in ways_of(case)[seed % 6::6]:
        wrong, _ = faults_or_sentence(case, way)
        if way[0] in LOCAL_SYNC_NAMES:  # where a rank trains more than others, its steps count
            wrong = [each for each in wrong if "is off by" not in each]
        assert wrong == []
