"""The witness: each classic fault is named on every rank, and right programs are left alone.

Mutations that turn this red: compare no gradients in Comparison; end Standstill's thread; raise
EVERY in own_loops.py; draw the multipliers of seen_samples from torch's own random numbers; have
`_all_or_none` publish nothing; wait by the store's own wait in Observer._wait; have
Observer._is_wrapped return False, or drop its look at the batches.
"""

import contextlib
import io
from functools import partial
from itertools import product

import pytest
import torch

from common import witness
from common.core.failures import Failure
from tests.facts import says
from tests.multiprocess.own_loops import EVERY, LOOPS, Setting
from tests.multiprocess.right_loops import RIGHT
from tests.ranks import Outcome, error_lines, free_port, program, run_programs, run_ranks

# By fault: the facts that every rank is told, and the steps after which at the latest.
TOLD = {"nobody": (("rank 1", "rank 0", "optimizer.step()"), EVERY + 2),
        "clipped": (("rank 1", "rank 0", "no_sync()"), EVERY + 2),
        "unwrapped": (("distribute_flag=True", "DistributedDataParallel"), 0),
        "begin": (("rank 1", "rank 0", "dist.broadcast"), 1),
        "drift": (("rank 1", "rank 0", "learning rate"), 4),
        "same": (("rank 1", "rank 0", "DistributedSampler(dataset)"), 2),
        "empty": (("rank 1", "drop_last=True"), 0),
        "reshuffled": (("rank 1", "rank 0", "2 epochs", "DistributedSampler(dataset)"), 4 * 8),
        "set_epoch": (("sampler.set_epoch(epoch)",), 4 * 4),
        "uneven": (("rank 1", 3, "rank 0", 4), 0),
        "generator": (("loader", "DataLoader"), 0)}
WITHOUT_FLAGS = (2, "task_flag", "distribute_flag=True")  # train_model's, where nobody averages
ONLY_WARNED_OF = ("reshuffled", "set_epoch")  # in loops of others
OTHERS = [loop for loop in LOOPS if loop != "documented"]
CASES = [*product(OTHERS, ["nobody", "begin", "drift", "same", "empty", *ONLY_WARNED_OF]),
         ("ddp", "clipped"),
         *(("documented", fault) for fault in TOLD if fault not in ("clipped", "set_epoch"))]


def learned(name: str, guard) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = RIGHT[name](guard)
    return [*(each.clone() for each in model.state_dict().values()), torch.get_rng_state()]


def with_and_without(names: list[str]) -> dict[str, tuple[bool, str]]:
    """By right program: whether it learns the same to the bit, and what the witness said."""
    found = {}
    for name in names:
        alone = learned(name, lambda *things: contextlib.nullcontext())
        with contextlib.redirect_stdout(io.StringIO()) as said:
            watched = learned(name, partial(witness, every=EVERY, timeout=60.0))
        found[name] = all(map(torch.equal, alone, watched)), said.getvalue()
    return found


SLOW = "ddp_joins_uneven_loaders"  # where ranks are not in step, answers are waited for in vain


@pytest.mark.parametrize("names", [
    sorted(RIGHT.keys() - {SLOW}), pytest.param([SLOW], marks=pytest.mark.slow)],
    ids=["in step", "not in step"])
def test_right_programs_learn_the_same_without_a_word(names):
    for rank in run_ranks(2, with_and_without, names):
        for name, (is_same, said) in rank.items():
            assert is_same and "warning" not in said, (name, said)


def named_faults(cases: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, int]]:
    """By loop and fault: what this rank said, or raised, and after how many steps it ended."""
    found = {}
    for loop, fault in cases:
        here = Setting(fault)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                LOOPS[loop](here)
            except Failure as failure:
                print(failure)
        found[loop, fault] = said.getvalue().replace("\n", " "), here.steps
    return found


def test_faults_that_leave_no_rank_blocked_are_told_to_every_rank():
    for rank in run_ranks(2, named_faults, CASES):
        for (loop, fault), (said, steps) in rank.items():
            facts, most = TOLD[fault]
            facts = WITHOUT_FLAGS if (loop, fault) == ("documented", "nobody") else facts
            assert says(said, *facts), (loop, fault, said)
            assert steps <= most, (loop, fault, steps)


def ended(loop: str, fault: str, folder) -> list[Outcome]:
    """How both ranks' processes end, started by torchrun's variables."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
              "GLOO_SOCKET_IFNAME": "lo"}
    return run_programs([program("tests/multiprocess/own_loops.py", [loop, fault], folder,
                                 f"rank{rank}", {"RANK": str(rank), **common})
                         for rank in range(2)])


BLOCKED = {"killed": ("rank 1",), "stuck": ("rank 1", "timeout="),
           "raises": ("rank 1", "a mistake of mine"),
           "uneven": ("rank 1", 12, "rank 0", "batch 13", "drop_last=True"),
           "continued": ("rank 1", 16, 15, "rank 0", "batch 16", "`continue`")}
FAST = [("ddp", "killed"), ("documented", "stuck"), ("hand", "raises"), ("tutorial", "uneven"),
        ("ddp", "continued")]
SLOW_CASES = [case for case in product(LOOPS, BLOCKED)
              if case not in (*FAST, ("documented", "uneven"), ("documented", "continued"))]


@pytest.mark.parametrize("loop, fault", [
    *FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)])
def test_faults_that_block_a_rank_end_it_with_the_sentence(loop, fault, tmp_path):
    outcomes = ended(loop, fault, tmp_path)
    for rank, outcome in enumerate(outcomes):
        if rank == 1 and fault in ("killed", "raises"):
            assert outcome.code in (-9, 1)
            continue
        told, = error_lines(outcome.output)
        assert says(told, *BLOCKED[fault]), told
        assert says(told, "timeout=") == (fault == "stuck"), told
        assert outcome.code == (3 if fault in ("uneven", "continued") else 75)
        assert "waitForInput" not in outcome.output, outcome.output
