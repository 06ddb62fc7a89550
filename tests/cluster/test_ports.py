"""The ports in docs/cluster.md are enough: hosts that drop all other packets train.

Mutations that turn this red: a range in the document's firewall other than the one that it sets;
the range of the first rank for that of the host in the sentence of broken_link.
"""


import pytest

from tests.cluster.box import box, needs_firewall, needs_namespaces
from tests.facts import says
from tests.faults.test_start_up import check
from tests.ranks import ROOT, run_programs

pytestmark = [needs_namespaces, needs_firewall]
SHUT = ["iptables -P INPUT DROP", "iptables -A INPUT -i lo -j ACCEPT"]
HOSTS = 3


def commands_of_the_document() -> list[str]:
    """The document's commands, for the network of the box."""
    section = (ROOT / "docs/cluster.md").read_text().partition("## Which ports to open")[2]
    block = section.partition("```\n")[2].partition("```")[0]
    return block.replace("10.0.0.0/24", "10.77.0.0/16").splitlines()


@pytest.fixture(scope="module")
def hosts():
    with box(HOSTS) as cluster:
        for rank in range(HOSTS):
            for command in SHUT + commands_of_the_document():
                cluster.run(rank, command)
        yield cluster


def outcomes(hosts, program: str, folder, *flags: str):
    return run_programs(hosts.cluster(program, HOSTS, [
        "--workload", "digits-vgg11", "--threads", "1", "--output-dir", str(folder / "out"),
        *flags], folder))


def test_hosts_that_drop_all_else_are_ready_and_train(hosts, tmp_path):
    first, *others = outcomes(hosts, "scripts/preflight.py", tmp_path)
    assert [each.code for each in (first, *others)] == [0] * HOSTS, first
    assert any(says(line, 29500, "rank 0", "40000-40999") for line in first.output.splitlines())
    for part in ("PartTwo", "PartThree"):
        ended = outcomes(hosts, part, tmp_path, "--batch-size", "9", "--max-iterations", "2",
                         "--epochs", "1")
        assert [each.code for each in ended] == [0] * HOSTS, ended


def test_the_ports_of_a_host_that_opens_too_few_are_named(hosts, tmp_path):
    hosts.run(1, "sysctl -w net.ipv4.ip_local_port_range='50000 50999'")
    try:
        ended = outcomes(hosts, "scripts/preflight.py", tmp_path)
    finally:
        hosts.run(1, "sysctl -w net.ipv4.ip_local_port_range='40000 40999'")
    check(ended, 75, "rank 1 on node1", "50000-50999")
    assert any(says(line, "40000-40999", "ranks 0, 2", "50000-50999", "rank 1")
               for line in ended[0].output.splitlines())
