"""A real SLURM of two nodes on this machine, for tests: own munge, own ports, all in one folder."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.box import wait_until
from tests.ranks import free_port

_MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or bool(_MISSING),
    reason="SLURM's daemons need root" if os.geteuid() else f"no {', '.join(_MISSING)} here")

SETTINGS = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=2,sched_min_interval=100000
NodeName=box1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=box2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment in which sbatch, srun and scontrol speak to this SLURM."""
    settings = folder / "slurm.conf"
    (folder / "state").mkdir()
    settings.write_text(SETTINGS.format(folder=folder, cores=os.cpu_count(),
                                        ports=[free_port() for _ in range(3)]))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with contextlib.ExitStack() as stack:
        for command in (["munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
                         *munge], ["slurmctld", "-D", "-f", str(settings)],
                        *(["slurmd", "-D", "-N", name, "-f", str(settings)]
                          for name in ("box1", "box2"))):
            stack.enter_context(_daemon(command, folder))
            if command[0] == "munged":
                wait_until((folder / "munge.socket").exists, seconds=10)
        environment = {**os.environ, "SLURM_CONF": str(settings)}
        wait_until(lambda: ask(environment, "sinfo", "-h", "-o", "%D %t") == "2 idle")
        yield environment


@contextlib.contextmanager
def _daemon(command: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / f"{command[0]}.said").open("a") as said, \
            subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def ask(environment: dict[str, str], *command: str) -> str:
    """Returns the output of a SLURM command."""
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip()


def wait_for_job(environment: dict[str, str], job: str, seconds: float = 150) -> str:
    """The state in which the job ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        fields = ask(environment, "scontrol", "show", "job", job).split()
        state = next((field[9:] for field in fields if field.startswith("JobState=")), "")
        if state not in ("", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"):
            return state
        time.sleep(0.2)
    return "STILL RUNNING"
