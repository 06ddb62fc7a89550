"""Hosts out of network namespaces, for tests: made by the script a user runs, entered by fork.

Ranks come from the forkserver, which has torch loaded, and step into a node before their main runs.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ranks import ROOT, Program, program

SCRIPT = str(ROOT / "scripts" / "namespace_cluster.sh")
MASTER = "10.77.0.1"
_NEW_MOUNTS, _NEW_NAMES, _NEW_NETWORK = 0x00020000, 0x04000000, 0x40000000
_PRIVATE, _BIND = 1 << 18 | 1 << 14, 1 << 12
_MISSING = [tool for tool in ("ip", "tc", "unshare", "setpriv") if not shutil.which(tool)]

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or bool(_MISSING),
    reason="network namespaces need root" if os.geteuid() else f"no {', '.join(_MISSING)} here")
needs_firewall = pytest.mark.skipif(not shutil.which("iptables"), reason="iptables is missing")


class Box(NamedTuple):
    """A running namespace cluster; `target` is a process inside its outer namespaces."""

    script: subprocess.Popen
    target: int

    def run(self, rank: int, command: str) -> None:
        """Runs a shell command in a node's network."""
        self._inside(["ip", "netns", "exec", f"node{rank}", "bash", "-c", command])

    def run_outside(self, command: str) -> None:
        """Runs a shell command where the bridge and the nodes' links are."""
        self._inside(["bash", "-c", command])

    def kill(self, rank: int) -> None:
        """Ends at once whatever a test has started in a node."""
        node = _namespace(f"{self.target}/root/run/netns/node{rank}")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has just ended, or is a zombie
                if (_namespace(f"{pid}/ns/net") == node
                        and _namespace(f"{pid}/ns/pid") == _namespace("self/ns/pid")):
                    os.kill(int(pid), signal.SIGKILL)

    def _inside(self, command: Sequence[str]) -> None:
        subprocess.run(["nsenter", "--target", str(self.target), "--net", "--mount", *command],
                       check=True, capture_output=True)

    def cluster(self, part: str, size: int, flags: Sequence[str], folder: Path,
                by_rank: Mapping[int, Sequence[str]] | None = None,
                before: Mapping[int, Callable[[], None]] | None = None) -> list[Program]:
        """The assignment's command on each node; see tests.ranks.cluster."""
        return [program(part, ["-M", MASTER, "-N", str(size), "-R", str(rank), *flags,
                               *(by_rank or {}).get(rank, ())], folder, f"rank{rank}",
                        before=partial(enter, self.target, rank, (before or {}).get(rank)))
                for rank in range(size)]


@contextlib.contextmanager
def box(nodes: int, rate: str = "1gbit") -> Iterator[Box]:
    """Nodes that wait; killed the hard way at the end, which must leave nothing behind."""
    with tempfile.TemporaryDirectory() as logs, subprocess.Popen(
            [SCRIPT, "-n", str(nodes), "-r", rate, "-l", logs, "sleep", "1000"],
            stderr=subprocess.PIPE, text=True) as script:
        try:
            words = script.stderr.readline().split()  # type: ignore[union-attr]
            target = int(words[words.index("--target") + 1])
            wait_until(Path(f"/proc/{target}/root/run/start").exists)
            yield Box(script, target)
        finally:
            script.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Returns once the condition holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not come true in {seconds} s"
        time.sleep(0.05)


def _namespace(path: str) -> int:
    return os.stat(f"/proc/{path}").st_ino


def enter(target: int, rank: int, then: Callable[[], None] | None = None) -> None:
    """Moves this process into a node: its network, its host name. Then calls `then`."""
    with open(f"/proc/{target}/root/run/netns/node{rank}") as network:
        _system("setns", network.fileno(), _NEW_NETWORK)
    _system("unshare", _NEW_NAMES)
    socket.sethostname(f"node{rank}")
    if then is not None:
        then()


def with_hosts(text: str) -> None:
    """Gives this process a hosts file of its own."""
    _system("unshare", _NEW_MOUNTS)
    _system("mount", b"none", b"/", None, _PRIVATE, None)
    with tempfile.NamedTemporaryFile("w", delete=False) as hosts:
        hosts.write(text)
    _system("mount", hosts.name.encode(), b"/etc/hosts", None, _BIND, None)
    os.unlink(hosts.name)


def _system(call: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
