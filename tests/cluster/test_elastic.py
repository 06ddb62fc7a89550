"""A host is killed, training goes on with three, the host comes back: not one bit is different.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 3:4 --rdzv-backend c10d ...

One machine plays four hosts: where it is busy, a round of restarts takes minutes.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from common.core.events import read_events
from common.run import checkpoint_file
from tests.cluster.box import MASTER, Box, box, enter, needs_namespaces, wait_until, with_hosts
from tests.faults.compared_runs import RESUMED
from tests.ranks import ROOT, Program, program, run_programs, started
from tests.workload import SMALL, plant

pytestmark = [needs_namespaces, pytest.mark.slow]
HOSTS = "127.0.0.1 localhost\n" + "".join(f"10.77.0.{rank + 1} node{rank}\n" for rank in range(4))
EPOCHS, HELD_STEP, SECONDS = 5, 36, 240
FLAGS = [*SMALL, "--epochs", str(EPOCHS), "--virtual-nodes", "4"]
RUNS = {"PartThree": ("PartThree", []),
        "PartTwo": ("PartTwo/reduce-scatter", ["--sync", "reduce-scatter"])}
MAIN = """
import os, runpy, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from common.cluster.stopping import process_stop
from common.run import run
from tests.workload import plant

plant()
finish_step = run.Run.finish_step
def slowly(self, *arguments):
    time.sleep(0.2)
    while self.position.step == {held} and not Path({go!r}).exists() and not process_stop().signal:
        time.sleep(0.05)
    finish_step(self, *arguments)
run.Run.finish_step = slowly
sys.argv[0] = {main!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def host(hosts: Box, rank: int, part: str, folder: Path, name: str) -> Program:
    """The torchrun of a host, with its own folder as a disk."""
    run = ["--nnodes", "3:4", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "one",
           "--rdzv-endpoint", f"{MASTER}:29400", "--local-addr", f"10.77.0.{rank + 1}",
           "--rdzv-conf", "last_call_timeout=15", "--max-restarts", "20",
           str(folder / "small_main.py")]
    flags = [*FLAGS, *RUNS[part][1], "--resume", "auto", "--checkpoint-every", "3", "--output-dir",
             str(folder / f"disk{rank}")]
    return program("torchrun", [], folder, name, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                   before=partial(enter, hosts.target, rank, partial(torchrun, [*run, *flags])))


def torchrun(arguments: list[str]) -> None:
    """Turns this process into torchrun."""
    with_hosts(HOSTS)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *arguments])


def write_main(part: str, folder: Path) -> None:
    """The part with the small workload, whose steps take a while; one waits for `folder/go`."""
    (folder / "small_main.py").write_text(MAIN.format(
        root=str(ROOT), held=HELD_STEP, go=str(folder / "go"), main=str(ROOT / part / "main.py")))


@contextlib.contextmanager
def on(hosts: Box, programs: list[Program]) -> Iterator[None]:
    """The programs, started; at the end nothing is left of them on any host."""
    try:
        with started([each.process for each in programs]):
            yield
    finally:
        for rank in range(4):
            hosts.kill(rank)


def train(ranks: int, folder: Path) -> bool:
    """True if so many ranks are training by the leader's log: they have finished a step."""
    events = list(read_events(folder / "metrics_rank0.jsonl"))
    starts = [place for place, event in enumerate(events) if event["event"] == "start"]
    return (bool(starts) and events[starts[-1]]["world_size"] == ranks
            and any(event["event"] == "step" for event in events[starts[-1]:]))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", RUNS)
def test_a_host_is_killed_and_comes_back_and_no_bit_is_different(part, tmp_path):
    run = tmp_path / "disk0" / RUNS[part][0]
    write_main(part, tmp_path)
    with box(4) as hosts:
        four = [host(hosts, rank, part, tmp_path, f"host{rank}") for rank in range(4)]
        back = host(hosts, 3, part, tmp_path, "back")
        with on(hosts, four):
            wait_until(lambda: train(4, run) and any(run.glob("checkpoints/*.pt")), SECONDS)
            hosts.kill(3)
            wait_until(partial(train, 3, run), SECONDS)
            with started([back.process]):
                wait_until(partial(train, 4, run), SECONDS)
                (tmp_path / "go").touch()
        outcomes = [each.outcome() for each in [*four[:3], back]]
    assert [outcome.code for outcome in outcomes] == [0] * 4, outcomes
    assert RESUMED in (run / "logs_rank0.txt").read_text()
    assert end_of(run) == end_of(undisturbed(part, tmp_path / "alone"))


def undisturbed(part: str, folder: Path) -> Path:
    """Trains the same run on one rank; returns its folder."""
    folder.mkdir()
    alone = program(part, ["--num-nodes", "1", *FLAGS, *RUNS[part][1], "--output-dir", str(folder)],
                    folder, "alone", before=plant)
    assert [outcome.code for outcome in run_programs([alone])] == [0]
    return folder / RUNS[part][0]


def end_of(run: Path) -> dict[str, Any]:
    """The results of a run: each tensor as bytes, and the epochs' losses."""
    contents = checkpoint_file.read(run / "checkpoints" / f"Epoch_{EPOCHS}.pt")
    momentum = contents["optimizer_state_dict"]["state"]
    tensors = contents["model_state_dict"] | {
        f"momentum {number}": state["momentum_buffer"] for number, state in momentum.items()}
    return {"epochs": [(event["epoch"], event["loss"], event["accuracy"])
                       for event in read_events(run / "metrics_rank0.jsonl", "epoch")],
            **{name: tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
               for name, tensor in tensors.items()}}
