"""Four hosts at 1 Gbit/s learn what four local ranks learn, and name a host that is cut off.

Mutations that turn this red: let namespace_inside.sh fill in one rank for all nodes; drop
--kill-child or setpriv from namespace_cluster.sh (nodes outlive a killed script); drop its trap for
TERM; drop `limit` from build; drop the `_silent_rank` verdict of the watch, or its lost_link.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from common.core.events import read_events
from tests.cluster.box import (
    SCRIPT,
    box,
    needs_firewall,
    needs_namespaces,
    wait_until,
    with_hosts,
)
from tests.cluster.test_preflight import debian_hosts
from tests.facts import says
from tests.faults.test_start_up import check
from tests.ranks import ROOT, cluster, run_programs, started

pytestmark = needs_namespaces
FLAGS = ["--workload", "digits-vgg11", "--batch-size", "8", "--threads", "1", "--epochs", "1"]
RUNS = ["PartTwo/gather-scatter", "PartTwo/all-reduce", "PartThree"]


def losses(folder: Path, run: str, rank: int) -> list[float]:
    return [event["loss"] for event in read_events(folder / run / f"metrics_rank{rank}.jsonl",
                                                   "step")]


def test_the_assignments_commands_on_four_hosts_learn_what_four_local_ranks_learn(tmp_path):
    flags = [*FLAGS, "--max-iterations", "2", "--output-dir"]
    hosts, local = tmp_path / "hosts", tmp_path / "local"
    done = subprocess.run(
        [SCRIPT, "-n", "4", "-r", "1gbit", "-l", str(tmp_path / "logs"), sys.executable,
         "PartTwo/main.py", "--master-ip", "{master}", "--num-nodes", "{nodes}", "--rank", "{rank}",
         *flags, str(hosts)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(says(line, "rank 3", "node3") for line in done.stdout.splitlines())
    assert any(says(line, "10.77.0.4", "eth0") for line in done.stdout.splitlines())
    with box(4) as four:
        all_well(run_programs(four.cluster("PartThree", 4, [*flags, str(hosts)], tmp_path)))
    for part in ("PartTwo", "PartThree"):
        all_well(run_programs(cluster(part, 4, [*flags, str(local)], tmp_path)))
    for run in RUNS:
        for rank in range(4):
            assert len(losses(hosts, run, rank)) == 2
            assert losses(hosts, run, rank) == pytest.approx(losses(local, run, rank), abs=1e-5)


def all_well(outcomes) -> None:
    assert [outcome.code for outcome in outcomes] == [0] * len(outcomes), outcomes


def test_part_one_on_one_host(tmp_path):
    command = [sys.executable, "PartOne/main.py", *FLAGS, "--max-iterations", "1", "--output-dir",
               str(tmp_path)]
    done = subprocess.run([SCRIPT, "-n", "1", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(losses(tmp_path, "PartOne", 0)) == 1


def test_a_host_that_is_cut_off_is_named_and_ends_too(tmp_path):
    with box(4) as hosts:
        programs = hosts.cluster("PartTwo", 4, [*FLAGS, "--output-dir", str(tmp_path / "out"),
                                                "--sync", "all-reduce"], tmp_path)
        metrics = tmp_path / "out" / "PartTwo" / "all-reduce" / "metrics_rank2.jsonl"
        with started([each.process for each in programs]):
            wait_until(lambda: len(list(read_events(metrics, "step"))) >= 2)
            hosts.run_outside("ip link set link2 down")
        outcomes = [each.outcome() for each in programs]
    check(outcomes[:2] + outcomes[3:], 75, "rank 2", "node2")
    check(outcomes[2:3], 75, "rank 0", "node0")


@needs_firewall
def test_a_lost_link_between_two_hosts_that_both_reach_the_leader_is_named(tmp_path):
    with box(3) as hosts:
        programs = hosts.cluster("PartTwo", 3, [*FLAGS, "--output-dir", str(tmp_path / "out"),
                                                "--sync", "all-reduce", "--timeout", "12"],
                                 tmp_path)
        metrics = tmp_path / "out" / "PartTwo" / "all-reduce" / "metrics_rank2.jsonl"
        with started([each.process for each in programs]):
            wait_until(lambda: len(list(read_events(metrics, "step"))) >= 2)
            hosts.run(1, "iptables -A INPUT -s 10.77.0.3 -j DROP")
            hosts.run(1, "iptables -A OUTPUT -d 10.77.0.3 -j DROP")
        outcomes = [each.outcome() for each in programs]
    check(outcomes, 75, "rank 1 on node1", "rank 2 on node2", "10.77.0.2", "10.77.0.3")


def test_hosts_that_call_themselves_127_0_1_1_train(tmp_path):
    with box(2) as hosts:
        outcomes = run_programs(hosts.cluster(
            "PartThree", 2, [*FLAGS, "--max-iterations", "1", "--output-dir",
                             str(tmp_path / "out")], tmp_path, before=debian_hosts()))
    all_well(outcomes)
    assert any(says(line, "10.77.0.2", "eth0") for line in outcomes[0].output.splitlines())


def test_each_host_has_its_own_name_address_loopback_and_rate(tmp_path):
    show = ("hostname; hostname -I; ip -brief address show dev lo; tc qdisc show dev eth0; "
            "exit {rank}")
    done = subprocess.run([SCRIPT, "-n", "3", "-r", "1gbit", "-s", "2=100mbit", "-l",
                           str(tmp_path), "bash", "-c", show], capture_output=True, text=True)
    assert done.returncode in (1, 2)  # of the node that failed first
    for rank, rate in enumerate(("rate 1Gbit", "rate 1Gbit", "rate 100Mbit")):
        told = (tmp_path / f"node{rank}.out").read_text()
        assert told.startswith(f"node{rank}\n10.77.0.{rank + 1} \nlo ") and rate in told
        assert (tmp_path / f"node{rank}.code").read_text() == f"{rank}\n"


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_outlives_the_script(tmp_path, number, code):
    words = f"sleeper{os.getpid()}and{number}"
    with subprocess.Popen([SCRIPT, "-n", "2", "-l", str(tmp_path), "bash", "-c",
                           f"exec -a {words} sleep 1000"], stderr=subprocess.DEVNULL) as script:
        wait_until(lambda: len(processes_called(words)) == 2)
        script.send_signal(number)
        assert script.wait(20) == code
    wait_until(lambda: not processes_called(words), seconds=10)


def processes_called(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(word.encode()):
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended
    return found


def test_two_clusters_run_side_by_side(tmp_path):
    with box(2), box(2) as second:
        second.run(1, "true")


@pytest.mark.parametrize("arguments, fact", [
    ([], "usage: "), (["-n", "0", "true"], "-n 0"), (["-p", "exit 7", "true"], "-p"),
    (["-r", "fast", "true"], "network")])
def test_mistakes_are_reported_in_a_sentence(arguments, fact):
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert any(line.startswith("error: ") and fact in line for line in done.stderr.splitlines())


def test_hosts_file_helper_changes_only_its_own_process(tmp_path):
    before = Path("/etc/hosts").read_text()
    with box(1) as hosts:
        run_programs(hosts.cluster("scripts/preflight.py", 1, ["--workload", "digits-vgg11"],
                                   tmp_path, before={0: partial(with_hosts, "127.0.0.1 x\n")}))
    assert Path("/etc/hosts").read_text() == before
