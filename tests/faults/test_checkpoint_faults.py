"""Checkpoints on a failing machine: killed in mid-write, damaged, hostile, full disk, no disk.

Whatever happens to a save, a complete checkpoint loads afterwards; whatever is wrong with a file,
it is refused by name, and none of its code runs.

Mutations that turn this red: write to `path` instead of `partial`; drop `_verify` from parse; load
with weights_only=False; raise at once in Checkpoints.save; drop `_require_layout`; delete instead
of `.aside` in prune; drop remove_partial_files or require_space from prepare_folder; drop `writing`
from common/report.py.
"""

import os
import pickle
import random
import re
import resource
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.core.failures import CheckpointError
from common.core.progress import Position
from common.run import checkpoint_file, checkpoint_folder
from studies.proof.ranks import CONTEXT
from tests.facts import says
from tests.ranks import program, run_programs
from tests.runs import Case, end_of, launch, same_bits
from tests.small import small_model
from tests.workload import SMALL, plant


def contents(step: int) -> dict:
    model = small_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return checkpoint_file.pack(model, optimizer, Position(step + 1, 0, step), 0.5, totals=[],
                           settings={}, ran_on={})


@pytest.fixture(scope="module")
def packed() -> dict:
    return contents(2)


@pytest.fixture
def folder(tmp_path, packed):
    """Holds Epoch_1.pt, complete."""
    checkpoint_file.write(tmp_path / "Epoch_1.pt", contents(1))
    return tmp_path


def loadable(folder: Path) -> list[str]:
    """The names of the checkpoints of a folder; each of them must be whole."""
    names = [path.name for path in checkpoint_folder.newest(folder)]
    for name in names:
        checkpoint_file.read(folder / name)
    return names


def save_and_die(folder: str, packed: dict, call: str | None, after: bool, limit: int) -> None:
    """Saves, and is killed by the kernel at the byte `limit`, or at a system call."""
    if call is not None:
        owner, name = (Path, "open") if call == "open" else (os, call)
        plain = getattr(owner, name)

        def die(*arguments):
            if after:
                plain(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(owner, name, die)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    checkpoint_file.write(Path(folder) / "Epoch_2.pt", packed)


def killed_save(folder: Path, packed: dict, **how) -> int:
    process = CONTEXT.Process(target=save_and_die, kwargs={
        "folder": str(folder), "packed": packed, "call": None, "after": False, "limit": 0, **how})
    process.start()
    process.join(30)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["open", "fsync", "replace", "close"])
def test_killed_at_a_system_call(call, after, folder, packed):
    assert killed_save(folder, packed, call=call, after=after) == -signal.SIGKILL
    new = (call, after) in [("replace", True), ("close", False), ("close", True)]
    assert loadable(folder) == ["Epoch_2.pt"] * new + ["Epoch_1.pt"]


def test_killed_at_fifty_byte_offsets(folder, packed):
    size = len(checkpoint_file._sealed(packed))
    for limit in range(0, size, -(-size // 50)):
        assert killed_save(folder, packed, limit=limit) == -signal.SIGXFSZ
        assert loadable(folder) == ["Epoch_1.pt"]
        assert (folder / "Epoch_2.pt.partial").stat().st_size == limit
    checkpoint_folder.remove_partial_files(folder)
    assert [path.name for path in folder.iterdir()] == ["Epoch_1.pt"]


@pytest.mark.slow
def test_a_thousand_bit_flips_are_refused(folder):
    path = folder / "Epoch_1.pt"
    data, chance = path.read_bytes(), random.Random(5)
    for _ in range(1000):
        bit = chance.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError, match="Epoch_1"):
            checkpoint_file.parse(bytes(flipped), path)


class Hostile:
    """Unpickling this calls `function` with `arguments`."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile_shapes(trace: str) -> list:
    """Twenty ways to make a loader run code; each would leave the folder `trace`."""
    code = f"__import__('os').mkdir({trace!r})"
    calls = [Hostile(os.mkdir, trace), Hostile(os.system, f"mkdir {trace}"), Hostile(eval, code),
             Hostile(exec, code), Hostile(subprocess.call, ["mkdir", trace]),
             Hostile(os.symlink, "/", trace), Hostile(__import__, "os"),
             Hostile(partial(os.mkdir, trace)), Hostile(pickle.loads, pickle.dumps(
                 Hostile(os.mkdir, trace))), Hostile(os.makedirs, trace)]
    inside = [{"model_state_dict": calls[0]}, {"optimizer_state_dict": {"state": calls[0]}},
              {"position": [calls[0], 0, 0]}, {"settings": {"seed": calls[1]}}, [calls[2]],
              (1, calls[3]), {calls[0]}, {"format": calls[4]}, {"totals": [[calls[5]]]},
              {Hostile(os.mkdir, trace): 1}]
    return calls + inside


@pytest.mark.parametrize("number", range(20))
def test_hostile_pickles_are_refused_and_nothing_runs(number, tmp_path):
    trace, path = tmp_path / "executed", tmp_path / "Epoch_1.pt"
    shape = hostile_shapes(str(trace))[number]
    # sealed: its checksum is right
    checkpoint_file.write(path, {"format": checkpoint_file.FORMAT, "payload": shape})
    with pytest.raises(CheckpointError, match=r"Epoch_1\.pt"):
        checkpoint_file.read(path)
    path.write_bytes(pickle.dumps(shape))
    with pytest.raises(CheckpointError, match=r"Epoch_1\.pt"):
        checkpoint_file.read(path)
    torch.save(shape, path)
    with pytest.raises(CheckpointError, match=r"Epoch_1\.pt"):
        checkpoint_file.read(path)
    assert not trace.exists()


PLAIN = st.recursive(st.none() | st.booleans() | st.integers(-2**40, 2**40) | st.text(max_size=5)
                     | st.floats(), lambda more: st.lists(more, max_size=3)
                     | st.dictionaries(st.text(max_size=5), more, max_size=3), max_leaves=6)
ENTRIES = ("format", "position", "model_state_dict", "optimizer_state_dict", "epoch", "loss")


def check_header(path: Path, packed: dict, changes: dict) -> None:
    """A checkpoint with other entries is used or refused in one sentence: no other exception."""
    checkpoint_file.write(path, {**packed, **changes})
    model = small_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    try:
        found = checkpoint_file.read(path)
        Position(*found["position"])
        checkpoint_file.restore(found, path, model, optimizer)
    except CheckpointError as error:
        assert path.name in str(error) and "\n" not in str(error)


CHANGES = st.dictionaries(st.sampled_from(ENTRIES), PLAIN, min_size=1)
FUZZ = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=200, **FUZZ)
@given(changes=CHANGES)
def test_any_header_is_used_or_refused_in_one_sentence(tmp_path_factory, packed, changes):
    check_header(tmp_path_factory.getbasetemp() / "Epoch_1.pt", packed, changes)


@pytest.mark.slow
@settings(max_examples=2000, **FUZZ)
@given(changes=CHANGES)
def test_two_thousand_headers(tmp_path_factory, packed, changes):
    check_header(tmp_path_factory.getbasetemp() / "Epoch_1.pt", packed, changes)


def test_what_is_ahead_is_put_aside_and_what_is_old_is_deleted(tmp_path):
    for epoch in (1, 2, 3, 9):
        (tmp_path / f"Epoch_{epoch}.pt").write_text(str(epoch))
    checkpoint_folder.prune(tmp_path / "Epoch_3.pt", kept=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "Epoch_2.pt", "Epoch_3.pt", "Epoch_9.pt.aside"]


def run_small(folder: Path, *more: str, before=plant, logs: Path | None = None):
    outcome, = run_programs([program("PartOne", [
        *SMALL, "--output-dir", str(folder), "--checkpoint-every", "2", *more],
        logs or folder.parent, "rank0", before=before)])
    assert "Traceback" not in outcome.output, outcome.output
    return outcome


def fail_saves(first: int, last: int, number: int) -> None:
    """The small workload; its saves number `first` to `last` raise the error `number`."""
    plant()
    fsync, count = os.fsync, iter(range(1, 1000))

    def failing(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".partial") \
                and first <= next(count) <= last:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)
    os.fsync = failing


@pytest.mark.parametrize("number", [5, 28, 30])  # input/output, no space, read-only
def test_a_disk_that_fails_for_a_while_costs_a_warning(number, tmp_path, undisturbed):
    outcome = run_small(tmp_path / "out", before=partial(fail_saves, 2, 4, number))
    assert outcome.code == 0
    warnings = re.findall(r"^warning: .*", outcome.output, re.MULTILINE)
    assert len(warnings) == 3
    for each in warnings:  # the one that was not written, and the last good one
        assert says(each, os.strerror(number)) and each.count(".pt") == 2
    case = Case("PartOne", 1, "memory", 2, 0)
    assert same_bits(end_of(case, tmp_path / "out"), undisturbed(case))


def test_a_disk_that_fails_to_the_end_fails_the_run_and_keeps_the_old(tmp_path):
    outcome = run_small(tmp_path / "out", before=partial(fail_saves, 3, 99, 28))
    assert outcome.code == 4 and len(re.findall(r"error: .*\.pt\b", outcome.output)) == 1
    assert loadable(tmp_path / "out" / "PartOne" / "checkpoints") == [
        "Epoch_1_Iteration_4.pt", "Epoch_1_Iteration_2.pt"]


@pytest.mark.parametrize("name", ["report.txt", "report.json", "summary.json"])
def test_a_full_disk_under_the_report_is_a_sentence(name, tmp_path):
    (tmp_path / "out" / "PartOne").mkdir(parents=True)
    (tmp_path / "out" / "PartOne" / name).symlink_to("/dev/full")
    outcome = run_small(tmp_path / "out")
    assert outcome.code == 2 and outcome.output.count("error: ") == 1, outcome.output
    assert says(outcome.output, name, "No space left on device")


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 1 MB; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk(small_disk, packed):
    path = small_disk / "Epoch_1.pt"
    checkpoint_file.write(path, packed)
    before = path.read_bytes()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(CheckpointError, match=r"Epoch_2\.pt.*No space left"):
        checkpoint_file.write(small_disk / "Epoch_2.pt", packed)
    assert path.read_bytes() == before and sorted(os.listdir(small_disk)) == [
        "Epoch_1.pt", "filler"]
    with pytest.raises(CheckpointError, match=r"\b0 MB\b.*\b3\b"):
        checkpoint_folder.require_space(small_disk, small_model(), 3)


def test_a_disk_too_small_is_refused_at_the_start(small_disk, tmp_path):
    (small_disk / "filler").write_bytes(bytes(1024 * 1000))
    outcome = run_small(small_disk / "out", logs=tmp_path)
    assert outcome.code == 4 and outcome.output.count("error: ") == 1, outcome.output
    assert re.search(r"error: .*\d MB\b.*\b3\b", outcome.output)


def test_a_read_only_disk(small_disk, packed):
    checkpoint_file.write(small_disk / "Epoch_1.pt", packed)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        checkpoint_file.write(small_disk / "Epoch_2.pt", packed)
    assert loadable(small_disk) == ["Epoch_1.pt"]


def test_stale_partial_files_go_at_the_next_start(tmp_path, undisturbed):
    case = Case("PartOne", 1, "memory", 4, 6)
    launch(case, tmp_path, "no", before=partial(plant, kill_at=6), code=-9)
    partials = tmp_path / "PartOne" / "checkpoints"
    (partials / "Epoch_1_Iteration_6.pt.partial").write_bytes(b"half")
    launch(case, tmp_path, "auto")
    assert same_bits(end_of(case, tmp_path), undisturbed(case))
    assert not list(partials.glob("*.partial"))
