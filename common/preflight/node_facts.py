"""Facts of a node: name, route, memory, disk. From files of Linux, with no other program.

    python3 -c "from common.preflight.node_facts import *; print(own_name(), gateway('10.0.0.1'))"
"""

import os
import shutil
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from common.cluster.addresses import resolve
from common.core.failures import UsageError
from common.core.provenance import lines_of


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a rank's node that RankInfo does not have: plain values, for JSON.

    Sizes are bytes; `port` is its LinkServer's, `ports` the range of ephemeral ports, as gloo uses
    them; `link_speed` is in Mbit/s.
    """

    port: int
    ports: str
    name_means: str
    gateway: str | None
    link_speed: int | None
    mtu: int | None
    memory: int
    memory_free: int
    disk_free: int
    load: float
    gpu_names: list[str]

    @classmethod
    def of_this_node(cls, port: int, output_dir: Path, interface: str,
                     master: str) -> "NodeFacts":
        """Collects the facts of this node; `master` is an address."""
        return cls(
            port, given_ports(), own_name(), gateway(master), _interface_number(interface, "speed"),
            _interface_number(interface, "mtu"), *memory(), disk_free(output_dir),
            os.getloadavg()[0],
            [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])


def own_name() -> str:
    """The address that this host's own name resolves to here, or "unknown".

    Debian's hosts file says 127.0.1.1: a rank that announced that address would not be found.
    """
    try:
        return resolve(socket.gethostname())
    except UsageError:
        return "unknown"


def given_ports() -> str:
    """The range of ephemeral ports: "32768-60999"."""
    return "-".join(" ".join(lines_of("/proc/sys/net/ipv4/ip_local_port_range")).split())


def gateway(destination: str) -> str | None:
    """The first hop of the route; None on a direct route, "" for IPv6, which is not looked up."""
    if ":" in destination:
        return ""
    if destination.startswith("127."):
        return None
    (target,) = struct.unpack("=I", socket.inet_aton(destination))
    best, hop = -1, 0
    for line in lines_of("/proc/net/route")[1:]:
        fields = line.split()
        # The kernel prints each address as one hexadecimal number in the machine's byte order.
        network, through, mask = (int(fields[column], 16) for column in (1, 2, 7))
        if target & mask == network and mask.bit_count() > best:
            best, hop = mask.bit_count(), through
    return socket.inet_ntoa(struct.pack("=I", hop)) if hop else None


def memory() -> tuple[int, int]:
    """Total and available memory in bytes; zeros where Linux's meminfo is missing."""
    sizes = dict(line.split(":") for line in lines_of("/proc/meminfo"))
    return (1024 * int(sizes.get("MemTotal", "0").split()[0]),
            1024 * int(sizes.get("MemAvailable", "0").split()[0]))


def disk_free(folder: Path) -> int:
    """Free bytes where `folder` is, or would be made."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _interface_number(interface: str, name: str) -> int | None:
    """A number that the interface's driver reports; None for loopback and for unplugged cables."""
    lines = lines_of(f"/sys/class/net/{interface}/{name}")
    return int(lines[0]) if lines and int(lines[0]) > 0 else None
