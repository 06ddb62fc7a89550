"""Errors in a user's script when it is refused: one sentence, raised as documented.

Mutations that turn this red: drop `from None` from told_alone; leave sys.excepthook as it is; show
a script's lines for every failure, or for none; raise the Verdict in Board.fail also where it says
what this rank has raised.
"""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import common
from common.core.failures import Failure, RanksDisagree, UsageError
from tests.facts import says
from tests.ranks import ROOT, free_port, run_ranks

SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
from common import train_model, witness
from common.core.failures import Failure
folder, rate, samples, caught = sys.argv[1:]
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), float(rate))
batches = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))] * int(samples)
def main():
    train_model(model, "cpu", torch.nn.CrossEntropyLoss(), optimizer, 1, 2, batches,
                folder + "/logs_rank0.txt", folder, False)
try:
    main()
except Failure as failure:
    print("caught", type(failure).__name__, failure.__suppress_context__)
    if caught == "no":
        raise
if caught == "mistake":
    model.weight.no_such_thing
"""
CALL = "    train_model(model,"


def run(folder, *words: str) -> subprocess.CompletedProcess:
    (folder / "own.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, folder / "own.py", folder, *words], text=True,
                          capture_output=True, timeout=100)


def test_a_wrong_call_shows_the_scripts_own_lines_and_the_sentence(tmp_path):
    done = run(tmp_path, "0.1", "0", "no")
    *own, sentence = done.stderr.splitlines()
    assert re.match("error: .*loader", sentence)
    assert done.returncode == 2 and any(CALL in line for line in own)
    assert {line.split('"')[1] for line in own if "File" in line} == {str(tmp_path / "own.py")}
    assert len(own) <= 6 and "caught UsageError True" in done.stdout


def test_any_other_failure_is_its_sentence_alone(tmp_path):
    done = run(tmp_path, "inf", "3", "no")
    sentence, = done.stderr.splitlines()
    assert sentence.startswith("error: ") and says(sentence, "loss", "rank 0")
    assert done.returncode == 5 and "caught NonFiniteLoss True" in done.stdout


def test_what_a_script_catches_and_its_own_mistakes_are_left_alone(tmp_path):
    done = run(tmp_path, "inf", "3", "yes")
    assert done.returncode == 0 and not done.stderr
    done = run(tmp_path, "inf", "3", "mistake")
    assert "caught" in done.stdout
    assert done.returncode == 1 and done.stderr.startswith("Traceback")


TWO_RANKS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
from common import witness
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
with witness(model, torch.optim.SGD(model.parameters(), 0.1), []):
    pass
"""


def test_on_several_ranks_each_is_told_once(tmp_path):
    """torch shows exceptions in its own way once there is a process group."""
    (tmp_path / "two.py").write_text(TWO_RANKS)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
              "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, tmp_path / "two.py"], stderr=subprocess.PIPE,
                              text=True, env={**os.environ, **common, "RANK": str(rank)})
             for rank in range(2)]
    for rank in ranks:
        lines = [line for line in rank.communicate(timeout=100)[1].splitlines()
                 if not line.startswith("[W")]
        assert re.search("error: .*loader.*rank 0", lines[-1]), lines
        assert len(lines) <= 4 and rank.returncode == 2


def refused() -> dict[str, tuple[type, bool]]:
    """By fault: the kind of what this rank's call raises, and whether it stands alone."""
    found, rank = {}, dist.get_rank()
    data = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    for fault, loader, seed in (("empty", [], 1), ("weights", DataLoader(data, 4), rank)):
        torch.manual_seed(seed)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        try:
            with common.witness(model, optimizer, loader, timeout=30.0):
                for inputs, targets in loader:
                    nn.functional.cross_entropy(model(inputs), targets).backward()
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad)
                    optimizer.step()
        except Failure as failure:
            found[fault] = type(failure), failure.__suppress_context__
    return found


def test_ranks_raise_what_the_documents_name():
    for found in run_ranks(2, refused):
        for fault, documented in (("empty", UsageError), ("weights", RanksDisagree)):
            kind, is_alone = found[fault]
            assert issubclass(kind, documented) and is_alone, fault


@pytest.mark.parametrize("name", ["train_model", "prepare_model_for_training", "evaluate_model"])
def test_the_functions_keep_their_docstrings(name):
    assert getattr(common, name).__doc__
