"""The strategies in somebody's own loop: the example, on one rank and on several.

Mutation that turns this red: leave line 5 of the example out, or line 6 (for cross-step); let a
rank of own_script.py take another's shard; drop the check of either's command line.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.reporting.recorded_run import find_runs
from common.settings.strategies import SYNC_NAMES
from tests.facts import says
from tests.ranks import ROOT, free_port

EXAMPLE = str(ROOT / "examples" / "own_loop.py")


def loss_of(strategy: str, ranks: int) -> float:
    """The loss that the example ends with, as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
         "--master-port", str(free_port()), EXAMPLE, strategy],
        cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = re.search(rf"{strategy}\b.*\b{ranks} ranks\b.*loss (\S+)\b.*\b40\b.*\b(\d\S*) bytes",
                      done.stdout)
    assert found and (ranks == 1 or found[2] != "0"), done.stdout
    return float(found[1])


@pytest.fixture(scope="module")
def alone():
    """The loss on one rank."""
    return loss_of("all-reduce", 1)


@pytest.mark.parametrize("strategy, ranks", [
    ("gather-scatter", 2), ("cross-step-all-reduce", 3),
    *(pytest.param(name, 4, marks=pytest.mark.slow) for name in SYNC_NAMES)])
def test_it_learns_what_one_rank_learns(strategy, ranks, alone):
    assert loss_of(strategy, ranks) == pytest.approx(alone, abs=2e-9)


# diloco, whose outer momentum overshoots where the steps of one round nearly solve the problem, has
# its tests in tests/multiprocess/test_local_sgd.py.
def test_weights_that_are_averaged_now_and_then_learn_something_else_and_well(alone):
    loss = loss_of("local-sgd", 2)
    assert loss != pytest.approx(alone, abs=1e-6) and loss < 1.0


SCRIPT = str(ROOT / "examples" / "own_script.py")


@pytest.mark.parametrize("words", [
    [EXAMPLE], [EXAMPLE, "--help"], [EXAMPLE, "all-reduce"], [SCRIPT, "--help"],
    [SCRIPT, "PartFour"], [SCRIPT, "alone", "outputs", "more"]])
def test_a_wrong_start_is_one_sentence_that_says_how_to_start(words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert says(done.stderr, "torchrun --nproc-per-node 2", Path(words[0]).name)


def test_a_script_of_the_documented_functions(tmp_path):
    launchers = {"alone": [], "PartTwo": ["-m", "torch.distributed.run", "--nproc-per-node", "2",
                                          "--master-port", str(free_port())]}
    said = {}
    for part, launcher in launchers.items():
        done = subprocess.run([sys.executable, *launcher, SCRIPT, part, str(tmp_path)],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        said[part] = float(re.search(r"(\S+) % .*\b297\b", done.stdout)[1])
    assert said["alone"] > 90 and said["PartTwo"] == pytest.approx(said["alone"], abs=1)
    assert [(run.name, run.ranks) for run in find_runs([tmp_path])] == [("alone", 1),
                                                                       ("PartTwo", 2)]
