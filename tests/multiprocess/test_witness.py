"""The witness: each classic fault is named on every rank, and right programs are left alone.

Mutations that turn this red: compare no gradients in Comparison; end Standstill's thread; raise
EVERY in own_loops.py; draw the multipliers of seen_samples from torch's own random numbers; have
`_all_or_none` publish nothing; wait by the store's own wait in Observer._wait; have
Observer._is_wrapped return False, or drop its look at the batches.
"""

import contextlib
import io
import re
from functools import partial
from itertools import product

import pytest
import torch

from common import witness
from common.core.failures import Failure
from tests.multiprocess.own_loops import EVERY, LOOPS, Setting
from tests.multiprocess.right_loops import RIGHT
from tests.ranks import Outcome, error_lines, free_port, program, run_programs, run_ranks

# By fault: what every rank is told, and the steps after which at the latest.
TOLD = {"nobody": ("nobody averages", EVERY + 2),
        "clipped": ("rank 1 has other gradients and weights .*, though DistributedDataParallel was "
                    "called: clip", EVERY + 2),
        "unwrapped": ("distribute_flag=True, but the model is not wrapped", 0),
        "begin": ("rank 1 begins with other weights than rank 0", 1),
        "drift": ("rank 1 has other weights than rank 0 .* the replicas drift", 4),
        "same": ("rank 1 trains on the same samples as rank 0, batch for batch", 2),
        "empty": ("the loader of rank 1 is empty", 0),
        "reshuffled": ("rank 1 has gone through the same samples as rank 0", 4 * 8),
        "set_epoch": ("its sampler was not told", 4 * 4),
        "uneven": ("rank 1's loader has 3 batches and rank 0's 4", 0),
        "generator": ("has no length, as a generator has none", 0)}
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
            sentence, most = TOLD[fault]
            assert re.search(sentence, said), (loop, fault, said)
            assert steps <= most, (loop, fault, steps)


def ended(loop: str, fault: str, folder) -> list[Outcome]:
    """How both ranks' processes end, started by torchrun's variables."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
              "GLOO_SOCKET_IFNAME": "lo"}
    return run_programs([program("tests/multiprocess/own_loops.py", [loop, fault], folder,
                                 f"rank{rank}", {"RANK": str(rank), **common})
                         for rank in range(2)])


BLOCKED = {"killed": r"rank 1 \(.*\) stopped answering",
           "stuck": r"rank 1 \(.*\) is stuck .* \(timeout= allows more\)",
           "raises": "rank 1 on .* failed: a mistake of mine",
           "uneven": "rank 1 has left its loop after 12, and rank 0 waits for it in .* of batch 13",
           "continued": "rank 1 is behind and has left its loop after 16 batches, of which it "
                        "trained 15; rank 0 waits in .* of batch 16"}
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
        assert re.search(BLOCKED[fault], told), told
        assert outcome.code == (3 if fault in ("uneven", "continued") else 75)
        assert "waitForInput" not in outcome.output, outcome.output
