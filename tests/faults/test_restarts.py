"""A killed rank, a restart, and the same weights as if nothing had happened: torchrun and without.

    torchrun --nproc-per-node 4 --max-restarts 3 PartThree/main.py --resume auto

These run the literal commands in fresh interpreters, so they are the slow ones of this folder.

Mutations that turn this red: leave `world.attempt` out of parse_command_line (a restart refuses the
folder); leave the attempt out of the store's prefix (the first attempt's verdict ends the second),
or in for a store of rank 0's own (a late host finds nobody); drop `--resume auto` in supervise.sh,
or the 75 in its test.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.cluster.master_port import serve_store
from common.cluster.rendezvous import open_store
from common.core.world import World
from tests.facts import says
from tests.faults.compared_runs import RESUMED
from tests.faults.disturbed import PAUSE
from tests.ranks import ROOT, free_port
from tests.runs import RUNS, Case, end_of, same_bits
from tests.workload import SMALL

HOOK = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.faults.disturbed import plant_phases
plant_phases(Path({folder!r}), {pause})
import os, runpy
sys.argv = [{main!r}, *sys.argv[1:]]
Path({folder!r}, "pid_" + os.environ.get("RANK", sys.argv[-1])).write_text(str(os.getpid()))
runpy.run_path({main!r}, run_name="__main__")
"""


def write_main(folder: Path, part: str) -> Path:
    """A script that is the part's main with the small workload, and tells its process id."""
    script = folder / "small_main.py"
    script.write_text(HOOK.format(root=str(ROOT), folder=str(folder), pause=PAUSE,
                                  main=str(ROOT / part / "main.py")))
    return script


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not (folder / f"at_training_{step}").exists():
        assert time.monotonic() < deadline, [path.read_text() for path in folder.glob("*.out")]
        time.sleep(0.01)


@pytest.mark.parametrize("case, more", [
    (Case("PartThree", 3, "memory", 4, 9), ["--resume", "auto"]),
    pytest.param(Case("all-reduce", 2, "memory", 4, 6), [], marks=pytest.mark.slow),
])
def test_torchrun_restarts_a_killed_rank(case, more, tmp_path, undisturbed):
    part = RUNS[case.run].split("/")[0]
    script = write_main(tmp_path, part)
    sync = ["--sync", case.run] if part == "PartTwo" else []
    with (tmp_path / "torchrun.out").open("w") as out:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node",
             str(case.world_size), "--max-restarts", "2", "--master-port", str(free_port()),
             str(script), *SMALL, "--output-dir", str(tmp_path), "--checkpoint-every",
             str(case.every), *sync, *more], stdout=out, stderr=out, cwd=ROOT)
        try:
            wait_for_step(tmp_path, case.kill_at)
            os.kill(int((tmp_path / "pid_1").read_text()), signal.SIGKILL)
            assert launcher.wait(180) == 0, (tmp_path / "torchrun.out").read_text()
        finally:
            launcher.terminate()
            launcher.wait(60)
    assert RESUMED in (tmp_path / RUNS[case.run] / "logs_rank0.txt").read_text()
    assert same_bits(end_of(case, tmp_path), undisturbed(case))


def test_the_supervising_script_restarts_without_torchrun(tmp_path, undisturbed):
    case = Case("gather-scatter", 2, "memory", 4, 6)
    script, port = write_main(tmp_path, "PartTwo"), str(free_port())
    scripts = []
    try:
        for rank in range(2):
            with (tmp_path / f"rank{rank}.out").open("w") as out:
                scripts.append(subprocess.Popen(
                    [ROOT / "scripts" / "supervise.sh", "2", sys.executable, script, *SMALL,
                     "--sync", case.run, "--output-dir", str(tmp_path), "--checkpoint-every", "4",
                     "-M", "127.0.0.1", "-N", "2", "--master-port", port, "-R", str(rank)],
                    stdout=out, stderr=out, env=os.environ | {"RESTART_PAUSE": "4"}))
        wait_for_step(tmp_path, case.kill_at)
        os.kill(int((tmp_path / "pid_1").read_text()), signal.SIGKILL)
        outputs = [tmp_path / f"rank{rank}.out" for rank in range(2)]
        assert [each.wait(120) for each in scripts] == [0, 0], [o.read_text() for o in outputs]
    finally:
        for each in scripts:
            each.terminate()
            each.wait(30)
    for output, code in zip(outputs, (75, 137), strict=True):
        assert any(says(line, code, "1 of 2") for line in output.read_text().splitlines())
    assert same_bits(end_of(case, tmp_path), undisturbed(case))


def supervise(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / "scripts" / "supervise.sh", *arguments], text=True,
                          capture_output=True, timeout=60, env=os.environ | {"RESTART_PAUSE": "0"})


@pytest.mark.parametrize("code, runs", [(0, 1), (2, 1), (3, 1), (4, 1), (5, 1), (75, 3), (137, 3),
                                        (130, 1), (143, 1)])
def test_what_is_restarted_and_what_is_not(code, runs):
    ended = supervise("2", "bash", "-c", f"echo ran; exit {code}", "name")
    assert ended.returncode == code and ended.stdout.count("ran") == runs
    assert (f"error: exit code {code}" in ended.stderr) == (runs == 3)
    assert ("SIGKILL" in ended.stderr) == (code == 137)


@pytest.mark.parametrize("name", ["USR1", "HUP"])
def test_a_signal_reaches_the_command_and_ends_the_supervision(name, tmp_path):
    bash = shutil.which("bash")
    script = subprocess.Popen(
        [ROOT / "scripts" / "supervise.sh", "2", bash, "-c",
         f"trap 'exit 75' {name}; touch {tmp_path}/up; while :; do sleep 0.05; done", "name"])
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    script.send_signal(getattr(signal, f"SIG{name}"))
    assert script.wait(20) == 75


def test_a_rank_of_fewer_restarts_finds_the_store_of_rank_0():
    """Under torchrun --nnodes 3:4 the agent of a host that comes later counts from 0."""
    port, deadline = free_port(), time.monotonic() + 20
    store = open_store(World(0, 2, master_port=port, attempt=3), "127.0.0.1", deadline, print)
    store.set("word", "of round 3")
    late = open_store(World(1, 2, master_port=port), "127.0.0.1", deadline, print)
    assert late.get("word") == b"of round 3"


def test_a_restart_does_not_read_what_is_left_on_a_launchers_store():
    served, deadline = serve_store("127.0.0.1", 0), time.monotonic() + 20
    first, second = (open_store(
        World(0, 2, master_port=served.port, store_is_served=True, attempt=attempt), "127.0.0.1",
        deadline, print) for attempt in (0, 1))
    first.set("verdict", "of attempt 0")
    assert not second.check(["verdict"])


@pytest.mark.parametrize("arguments", [[], ["2"], ["many", "true"]])
def test_mistakes(arguments):
    assert supervise(*arguments).returncode == 2
