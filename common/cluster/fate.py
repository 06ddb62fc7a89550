"""Fate of a process of this machine that stopped answering, as far as can be seen from here.

A process that a signal ends says nothing itself. scripts/local_cluster.sh, which started it, notes
its exit code in the folder EXIT_CODES; without a note, the kernel tells whether it is still there.

    python3 -c "from common.cluster.fate import *; print(fate_of(1))"
"""

import os
import signal
from pathlib import Path

from common.cluster.rank_info import RankInfo

ENDED = "Z"  # as the kernel writes it of a process whose parent has not asked yet


def fate_of_rank(lost: RankInfo, here: RankInfo) -> str:
    """Addition to the sentence that names the `lost` rank; "" if it is on another machine."""
    is_here = (lost.machine, lost.host) == (here.machine, here.host)
    return fate_of(lost.pid) if is_here else ""


def fate_of(pid: int) -> str:
    """"; its process was ended by SIGKILL", say; "" where it runs on."""
    if (code := _noted(pid)) is not None:
        return f"; its process {_in_words(code)}"
    return {"T": "; its process is stopped (SIGSTOP)", ENDED: "; its process has ended"}.get(
        state_of(Path(f"/proc/{pid}")), "")


def state_of(process: Path) -> str:
    """The state of a process or a thread, a letter as the kernel writes it in this folder."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ENDED


def _noted(pid: int) -> int | None:
    """The exit code that the launcher has noted, as a shell tells it."""
    try:
        return int(Path(os.environ["EXIT_CODES"], str(pid)).read_text())
    except (KeyError, OSError, ValueError):
        return None


def _in_words(code: int) -> str:
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"
