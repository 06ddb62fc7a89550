"""Facts of a node: ports, memory, disk. From files of Linux, with no other program.

    python3 -c "from common.preflight.node_facts import *; print(given_ports(), memory())"
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from common.core.provenance import lines_of


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a rank's node that RankInfo does not have: plain values, for JSON.

    Sizes are bytes; `port` is its LinkServer's, `ports` the range of ephemeral ports, as gloo uses
    them; `link_speed` is in Mbit/s.
    """

    port: int
    ports: str
    link_speed: int | None
    mtu: int | None
    memory: int
    memory_free: int
    disk_free: int
    load: float
    gpu_names: list[str]

    @classmethod
    def of_this_node(cls, port: int, output_dir: Path, interface: str) -> "NodeFacts":
        """Collects the facts of this node."""
        return cls(
            port, given_ports(), _interface_number(interface, "speed"),
            _interface_number(interface, "mtu"), *memory(), disk_free(output_dir),
            os.getloadavg()[0],
            [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])


def given_ports() -> str:
    """The range of ephemeral ports: "32768-60999"."""
    return "-".join(" ".join(lines_of("/proc/sys/net/ipv4/ip_local_port_range")).split())


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
