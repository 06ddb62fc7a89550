"""The process above a set of ranks: starts them, and leaves nothing behind that they start.

It lives as long as the grader holds the other end of `control`, on which it says why it ended them.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from select import select

from common.settings.user_code import Place
from studies.grading import isolation
from studies.grading.descendants import descendants, end_descendants, own_number
from studies.grading.rank_under_test import serve
from studies.grading.scenarios import Scenario

MOST_PROCESSES = 32  # beside the ranks
LOOK_SECONDS = 0.1
Ends = Sequence[tuple[socket.socket, socket.socket]]


def keep(is_isolated: bool, folder: str, hidden: Sequence[str], place: Place,
         scenarios: Sequence[Scenario], control: socket.socket, ends: Ends) -> None:
    """Keeps a rank for each of `ends`, a connection to the grader and one for its stacks.

    With `is_isolated` they have a machine of their own, in which `folder` alone can be written and
    `hidden` folders are empty.
    """
    with contextlib.suppress(OSError):  # should memory run out, it is theirs
        Path("/proc/self/oom_score_adj").write_text("1000")
    kept = [control, *(end for pair in ends for end in pair)]
    _close_all_but({0, 1, 2, *(each.fileno() for each in kept)})
    if is_isolated:
        isolation.leave_the_machine()
        if first := os.fork():
            for each in kept:
                each.close()
            os.waitpid(first, 0)
            os._exit(0)
        isolation.end_with_parent(signal.SIGKILL)
        isolation.make_files_read_only(hidden, folder)
    isolation.adopt_orphans()
    _watch(control, _start(folder, place, scenarios, ends))
    end_descendants()
    os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    """Closes all other descriptors: the forkserver's connections lead out."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _start(folder: str, place: Place, scenarios: Sequence[Scenario], ends: Ends) -> dict[int, int]:
    """Forks the ranks; returns them by a descriptor that is readable when they have ended."""
    started = {}
    with socket.create_server(("127.0.0.1", 0)) as store:
        for rank, (grader, stacks) in enumerate(ends):
            own = f"{folder}/rank{rank}"
            os.mkdir(own)
            if process := os.fork():
                started[os.pidfd_open(process)] = rank
                continue
            _close_all_but({0, 1, 2, *(each.fileno() for each in (store, grader, stacks))})
            serve(rank, len(ends), own, place, scenarios, store, grader, stacks)
    for end in (end for pair in ends for end in pair):
        end.close()
    return started


def _watch(control: socket.socket, ranks: dict[int, int]) -> None:
    """Waits until the grader hangs up, or they are too many; reports it, and each rank's end."""
    running = dict(ranks)
    while control.fileno() not in (ready := select([control.fileno(), *running], [], [],
                                                   LOOK_SECONDS)[0]):
        for ended in ready:
            status = os.waitid(os.P_PIDFD, ended, os.WEXITED)
            assert status is not None
            code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
            _tell(control, f"rank {running.pop(ended)} {code}")
        most = len(ranks) + MOST_PROCESSES
        if len([*islice(descendants(own_number()), most + 1)]) > most:
            _tell(control, "processes")
            return


def _tell(control: socket.socket, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the grader does not want to know any more
        control.send(f"{line}\n".encode())
