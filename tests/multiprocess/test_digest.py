"""The same command gives the same weights, whatever else keeps the machine busy; a digest says so.

Mutations that turn this red: choose convolutions by a stopwatch; seed a step by the clock; make
the digest of the names alone, or before the last step.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.arithmetic.choice import algorithms
from common.model.replica import digest_of
from common.model.vgg11 import VGG11
from common.run.checkpoint_file import read
from tests.ranks import program, run_programs


def train(folder: Path, threads: int, seed: int = 1) -> str:
    """The digest that two iterations of the quick start's workload end with."""
    folder.mkdir()
    flags = ["--workload", "digits-vgg11", "--max-iterations", "2", "--threads", str(threads),
             "--seed", str(seed), "--output-dir", str(folder)]
    (outcome,) = run_programs([program("PartOne", flags, folder, "rank0")])
    assert outcome.code == 0, outcome.output
    summary = json.loads((folder / "PartOne/summary.json").read_text())
    told = re.findall(r"(?i)\bweights\W+([0-9a-f]{8})\b", outcome.output)
    assert told == [summary["weights"]]
    return told[0]


@contextmanager
def load(processes: int) -> Iterator[None]:
    """A context in which the processors are busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_other_load_changes_no_bit(threads, tmp_path):
    alone = train(tmp_path / "alone", threads)
    with load(2):
        assert train(tmp_path / "busy", threads) == alone


def test_the_digest_is_of_the_weights_at_the_end(tmp_path):
    digest = train(tmp_path / "out", 1)
    model = VGG11(last_scale=1.0)
    assert not digest_of(model).startswith(digest)
    contents = read(next((tmp_path / "out/PartOne/checkpoints").glob("*.pt")))
    model.load_state_dict(contents["model_state_dict"])
    assert digest_of(model).startswith(digest)
    assert train(tmp_path / "other", 1, seed=2) != digest
    summary = json.loads((tmp_path / "out/PartOne/summary.json").read_text())
    assert summary["convolutions"] == contents["ran_on"]["convolutions"] != algorithms(model)
