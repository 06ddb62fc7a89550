"""Addresses of both kinds: IPv4, and IPv6 with or without brackets.

Mutations that turn this red: look up IPv4 alone in resolve, or in interface_addresses; prefer IPv6
for a name that has both; listen, or probe, with IPv4's family; keep the brackets.
"""

import socket

import pytest

from common.cluster.addresses import choose_interface, interface_addresses, listen, place, resolve
from common.core.failures import UsageError
from common.core.provenance import lines_of
from common.core.world import detect_world
from common.preflight.links import LinkServer, probe
from tests.facts import says

needs_ipv6 = pytest.mark.skipif(
    not any(line.endswith(" lo") for line in lines_of("/proc/net/if_inet6")),
    reason="loopback has no IPv6 address here")


def test_an_address_and_a_port_in_one_word():
    assert place("10.0.0.1", 29500) == "10.0.0.1:29500"
    assert place("fd00::1", 29500) == "[fd00::1]:29500"
    world = detect_world({}, master_ip="[fd00::1]", num_nodes=2, rank=1)
    assert world.master_address == resolve(world.master_address) == "fd00::1"


def test_a_name_with_both_means_its_ipv4_address(monkeypatch):
    both = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert resolve("both") == "127.0.0.1"


@needs_ipv6
def test_ipv6_on_loopback():
    assert ("lo", "::1") in interface_addresses() and ("lo", "127.0.0.1") in interface_addresses()
    assert choose_interface(None, "::1", 29500) == choose_interface("lo", "::1", 1) == ("lo", "::1")
    assert choose_interface("lo", "127.0.0.1", 1) == ("lo", "127.0.0.1")
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6
        port = listener.getsockname()[1]
        with pytest.raises(UsageError) as raised:
            listen("::1", port)
    assert says(raised.value, port, "::1", "--master-port")


@needs_ipv6
def test_the_preflight_probes_ipv6_links():
    with LinkServer("::1") as server:
        assert probe("::1", server.port, seconds=0.01).connects


def test_an_interface_without_such_an_address_is_refused():
    with pytest.raises(UsageError) as raised:
        choose_interface("none0", "fd00::1", 29500)
    assert says(raised.value, "none0", "IPv6")
