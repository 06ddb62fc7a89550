"""A real sshd for tests, with its own keys, settings and port, all in one folder: no login of the
machine's users is touched, and nothing of it remains."""

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.box import wait_until
from tests.ranks import free_port

SERVER = shutil.which("sshd") or "/usr/sbin/sshd"
needs_sshd = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(SERVER),
                                reason="needs root and openssh-server")


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[str]:
    """Yields the ssh command that reaches this machine as its present user."""
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                       check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\n")
    (folder / "ssh_config").write_text(
        f"Host *\n Port {port}\n User {getpass.getuser()}\n IdentityFile {folder}/user\n"
        " IdentitiesOnly yes\n StrictHostKeyChecking no\n LogLevel ERROR\n"
        f" UserKnownHostsFile {folder}/known_hosts\n")
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on this empty folder
    with subprocess.Popen([SERVER, "-D", "-f", str(folder / "sshd_config"), "-E",
                           str(folder / "sshd.log")]) as server:
        try:
            wait_until((folder / "pid").exists, seconds=10)
            yield f"ssh -F {folder}/ssh_config"
        finally:
            server.terminate()
