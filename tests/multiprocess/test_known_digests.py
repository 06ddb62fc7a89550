"""Commands end with the digests that are known of them, with AVX2 on one thread and as it comes.

Mutations that turn this red: any that changes a bit of a step, such as rounding a product and its
sum apart in `add_wide`; a setting that decides bits left out of `key_of`; a digest changed in
common/run/known_digests.json; `known == weights` turned round in `remark`.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from common.arithmetic import portable
from common.core.progress import Position
from common.core.provenance import processor_flags, versions
from common.run import known_digests
from common.settings.settings import Settings
from tests.facts import says
from tests.portable_cases import EMULATED, needs_emulator
from tests.ranks import ROOT
from tests.small_files import digits_as_mnist

VERSION = f"torch {versions()['torch'].partition('+')[0]}"
TABLE = json.loads(known_digests.TABLE.read_text())
ROWS = [row for row in TABLE.values() if "JPEG" not in row["command"]]
WIDE = "avx512" if "avx512f" in processor_flags() else "avx2"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["command"].split()[2])
@pytest.mark.parametrize(("capability", "threads"), [("avx2", 1), (WIDE, 2)])
def test_a_command_ends_with_its_digest(row, capability, threads, tmp_path):
    if capability == WIDE and "30" in row["command"]:
        threads = 3
    ends_with_its_digest(row, capability, threads, tmp_path)


@needs_emulator
@pytest.mark.parametrize("name", ["spiral-mlp", "mnist-cnn"])
def test_a_command_ends_with_its_digest_on_another_make(name, tmp_path):
    row = next(row for row in ROWS if name in row["command"])
    ends_with_its_digest(row, "avx2", 1, tmp_path, *EMULATED)


def ends_with_its_digest(row, capability, threads, tmp_path, *emulator):
    program, *flags = row["command"].partition(" (")[0].split()
    if "mnist" in row["command"]:
        digits_as_mnist(tmp_path / "mnist")
        flags += ["--data-dir", str(tmp_path / "mnist")]
    ended = subprocess.run(
        [*emulator, sys.executable, ROOT / program, *flags, "--threads", str(threads),
         "--output-dir", tmp_path / "run"], env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run/PartOne/summary.json").read_text())["weights"] == \
        row[VERSION]
    assert ended.stdout.count(row[VERSION]) == 2, ended.stdout


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
