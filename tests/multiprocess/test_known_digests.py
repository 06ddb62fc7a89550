"""Commands end with the digests that are known of them, with any vectors, threads, ranks, strategy.

Mutations that turn this red: any that changes a bit of a step, such as rounding a product and its
sum apart in `add_wide`; a setting that decides bits left out of `key_of`; a digest changed in
common/run/known_digests.json; `known == weights` turned round in `remark`; momenta left out of what
a resumed run restores.
"""

import json
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from common.arithmetic import portable
from common.core.progress import Position
from common.core.provenance import processor_flags, versions
from common.run import known_digests
from common.settings.settings import Settings
from tests.facts import says
from tests.portable_cases import EMULATED, needs_emulator
from tests.ranks import ROOT, cluster, program, run_programs
from tests.small_files import digits_as_mnist
from tests.workload import plant

VERSION = f"torch {versions()['torch'].partition('+')[0]}"
TABLE = json.loads(known_digests.TABLE.read_text())
ROWS = [row for row in TABLE.values() if "JPEG" not in row["command"]]
STRATEGIES = ("PartTwo/gather-scatter", "PartTwo/all-reduce", "PartTwo/overlapped-all-reduce",
              "PartThree")
WIDE = "avx512" if "avx512f" in processor_flags() else "avx2"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["command"].split()[2])
@pytest.mark.parametrize(("capability", "threads"), [("avx2", 1), (WIDE, 2)])
def test_a_command_ends_with_its_digest(row, capability, threads, tmp_path):
    if capability == WIDE and "30" in row["command"]:
        threads = 3
    ends_with_its_digest(row, capability, threads, tmp_path)


@needs_emulator
@pytest.mark.timeout(900)  # emulation is ten times slower and more, the more so beside other tests
@pytest.mark.parametrize("name", ["spiral-mlp", "mnist-cnn"])
def test_a_command_ends_with_its_digest_on_another_make(name, tmp_path):
    row = next(row for row in ROWS if name in row["command"])
    ends_with_its_digest(row, "avx2", 1, tmp_path, *EMULATED)


def test_killed_and_resumed_with_other_vectors_and_threads_it_ends_with_its_digest(tmp_path):
    row = next(row for row in ROWS if "spiral-mlp" in row["command"])
    flags = ["--checkpoint-every", "2", "--resume", "auto"]
    killed, = run_programs([program(
        "PartOne", [*flags_of(row, tmp_path), *flags, "--threads", "1"], tmp_path, "killed",
        before=partial(plant, 3))])
    assert killed.code == -9, killed.output
    ended = ends_with_its_digest(row, "avx2", 2, tmp_path, more=flags)
    assert says(ended, "resumed", "iteration 2")


# Each number of threads meets each number of ranks, and each strategy each of both.
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["command"].split()[2])
@pytest.mark.parametrize("threads", range(1, 5))
@pytest.mark.parametrize("ranks", range(1, 5))
def test_any_threads_ranks_and_strategy_end_with_its_digest(row, threads, ranks, tmp_path):
    strategy = STRATEGIES[(threads + ranks) % len(STRATEGIES)]
    in_cluster_ends_with_its_digest(row, strategy, ranks, threads, tmp_path)


def in_cluster_ends_with_its_digest(row, strategy, ranks, threads, tmp_path):
    part = strategy.partition("/")[0]
    sync = [] if part == "PartThree" else ["--sync", strategy.partition("/")[2]]
    outcomes = run_programs(cluster(
        part, ranks, [*flags_of(row, tmp_path), *sync, "--threads", str(threads)], tmp_path))
    assert [each.code for each in outcomes] == [0] * ranks, outcomes
    has_its_digest(row, tmp_path / "run" / strategy, outcomes[0].output)


def flags_of(row, tmp_path) -> list[str]:
    _, *flags = row["command"].partition(" (")[0].split()
    if "mnist" in row["command"]:
        digits_as_mnist(tmp_path / "mnist")
        flags += ["--data-dir", str(tmp_path / "mnist")]
    return [*flags, "--output-dir", str(tmp_path / "run")]


def ends_with_its_digest(row, capability, threads, tmp_path, *emulator, more=()) -> str:
    ended = subprocess.run(
        [*emulator, sys.executable, ROOT / "PartOne/main.py", *flags_of(row, tmp_path),
         "--threads", str(threads), *more], capture_output=True, text=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability})
    assert ended.returncode == 0, ended.stderr
    has_its_digest(row, tmp_path / "run/PartOne", ended.stdout)
    return ended.stdout


def has_its_digest(row, results, output):
    assert json.loads((results / "summary.json").read_text())["weights"] == row[VERSION]
    assert output.count(row[VERSION]) == 2, output


def run(settings: Settings, ranks: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        settings=settings, node=SimpleNamespace(world=SimpleNamespace(size=ranks)),
        position=Position(1, 6), checkpoints=SimpleNamespace(constants={"data": "abc"}))


def test_another_digest_and_another_version_are_told(monkeypatch):
    mine = run(Settings())
    monkeypatch.setattr(known_digests, "_table", lambda: {
        known_digests.key_of(mine): {"command": "x", VERSION: "0123abcd"}})
    portable.use("portable")
    assert says(known_digests.remark(mine, "0123abcd"), "0123abcd")
    other = known_digests.remark(mine, "99999999")
    assert says(other, "WARNING", "0123abcd", "99999999", "scripts/report_problem.py")
    assert known_digests.remark(run(Settings(seed=2)), "99999999") == ""
    monkeypatch.setattr(known_digests, "versions", lambda: {"torch": "3.0.0+cpu"})
    assert says(known_digests.remark(mine, "99999999"), "torch 3.0.0")
    portable.use("native")
    assert known_digests.remark(mine, "99999999") == ""


def test_the_key_is_that_of_all_that_decides_the_digest():
    keys = {known_digests.key_of(each) for each in (
        run(Settings()), run(Settings(seed=2)), run(Settings(convolutions="library")),
        run(Settings(), 2), run(Settings(virtual_nodes=4)))}
    assert len(keys) == 5
    same = {known_digests.key_of(run(Settings(virtual_nodes=4, threads=threads), ranks))
            for threads in (None, 3) for ranks in (1, 4)}
    assert len(same) == 1
