"""Nobody in: what listens, who may join, and that nothing which came by wire or file is executed.

Mutations that turn this red: bind the rendezvous to "0.0.0.0" in listen; leave the token out of the
digest; tell the leader of no rank that was sent away; use torch.load without weights_only, or
broadcast_object_list, anywhere.
"""

import ast
import os
import re
import time
from functools import partial
from pathlib import Path

import pytest

from common.cluster.addresses import warn_of_public_address
from tests.faults.disturbed import joined, plant_phases, running, wait_for
from tests.faults.test_start_up import check, flags_in
from tests.ranks import ROOT, cluster, free_port, program, run_programs, started
from tests.runs import Case
from tests.workload import SMALL

LISTENING = "0A"


def listening_addresses(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, of a process's listening TCP sockets."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found.group(1))
        except FileNotFoundError:
            continue  # closed meanwhile
    rows = [line.split() for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}


@pytest.mark.parametrize("run, size", [("PartOne", 1), ("gather-scatter", 3), ("PartThree", 3)])
def test_a_run_on_one_machine_listens_on_loopback_only(run, size, tmp_path):
    found: set[str] = set()
    with running(Case(run, size, "memory", 3, 0), tmp_path) as programs:
        for phase, number in (("start-up", 0), ("training", 2), ("training", 12)):
            wait_for(tmp_path, phase, number)
            for each in programs:
                found |= listening_addresses(each.process.pid)
        codes, _ = joined(programs, 60)
    assert codes == [0] * size
    assert found == (set() if size == 1 else {"0100007F"})  # 127.0.0.1, as x86 and Arm write it


def test_a_rank_of_another_job_is_sent_away_and_the_job_goes_on(tmp_path):
    flags = [*SMALL, "--output-dir", str(tmp_path / "out")]
    small = partial(plant_phases, tmp_path)
    port = str(free_port())
    command = ["-M", "127.0.0.1", "-N", "2", "--master-port", port, *flags]
    job = [program("PartTwo", [*command, "-R", str(rank)], tmp_path, f"rank{rank}",
                   {"RUN_TOKEN": "blue"}, before=small) for rank in range(2)]
    stranger = program("PartTwo", [*command, "-R", "1"], tmp_path, "stranger",
                       {"RUN_TOKEN": "red"}, before=small)
    with started([each.process for each in job]):
        time.sleep(0.5)
        check(run_programs([stranger]), 3, "RUN_TOKEN", "rank 1")
    assert [each.outcome().code for each in job] == [0, 0]


def be_red() -> None:
    os.environ["RUN_TOKEN"] = "red"


def test_no_token_on_one_side_is_another_token(tmp_path):
    programs = cluster("PartThree", 2, [*flags_in(tmp_path), "--timeout", "2"], tmp_path,
                       before={1: be_red})
    outcomes = run_programs(programs)
    check(outcomes[1:], 3, "RUN_TOKEN")
    check(outcomes[:1], 75, "rank 1 on", "RUN_TOKEN")


@pytest.mark.parametrize("address, warned", [
    ("127.0.0.1", False), ("10.0.0.1", False), ("192.168.7.7", False), ("172.16.0.1", False),
    ("100.64.0.1", False), ("169.254.1.1", False), ("8.8.8.8", True), ("172.32.0.1", True)])
def test_a_public_master_draws_a_warning(address, warned):
    said: list[str] = []
    warn_of_public_address(address, said.append)
    assert bool(said) == warned
    assert all(address in text and "docs/security.md" in text for text in said)


FORBIDDEN = (r"_object_list\b", r"gather_object\b", r"all_gather_object\b", r"\bpickle\b",
             r"weights_only\s*=\s*False", r"0\.0\.0\.0")


def test_no_code_comes_in_by_wire_or_file():
    for folder in ("common", "PartOne", "PartTwo", "PartThree"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for pattern in FORBIDDEN:
                assert not re.search(pattern, text), f"{path} has {pattern}"
            loads = re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", text)
            assert all("weights_only=True" in load for load in loads), path
            called = {node.func.id for node in ast.walk(ast.parse(text))
                      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
            assert not called & {"eval", "exec", "compile"}, path
