"""Finds ranks that wait for each other for ever: none of them computes any more."""

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from common.core.failures import Verdict
from common.settings.user_code import Place
from studies.stacks import Waiting, waiting_in

LOOK_SECONDS, MOST_LOOKS = 1.0, 25
LEAST_SECONDS = 0.05  # of computing between two looks, of all ranks together


class Watch:
    """Looks at the ranks of the user's strategy at `place`, one look each LOOK_SECONDS.

    Looks are counted, not seconds: what stops every process for a while stops the looks too.
    """

    def __init__(self, place: Place, processes: Sequence[int],
                 stacks: Sequence[socket.socket]) -> None:
        self._place, self._processes, self._stacks = place, processes, stacks
        self._computed, self._looks = 0.0, 0

    def look(self, missing: Sequence[int]) -> None:
        """Raises a Verdict on the `missing` ranks if none has computed for MOST_LOOKS looks."""
        computed = sum(map(_cpu_seconds, self._processes))
        is_still = computed - self._computed < LEAST_SECONDS
        self._computed, self._looks = computed, self._looks + 1 if is_still else 0
        if self._looks >= MOST_LOOKS:
            waiting = [self._waiting(rank) for rank in missing]
            known = [each for each in waiting if each.line] or waiting
            raise Verdict(f"{self._place} on {len(self._processes)} ranks: a rank is left waiting: "
                          f"{', '.join(map(str, known))}: it does not go on", Verdict.exit_code)

    def _waiting(self, rank: int) -> Waiting:
        process = os.pidfd_open(self._processes[rank])
        try:
            return waiting_in(process, self._stacks[rank], rank, self._place.file)
        finally:
            os.close(process)


def _cpu_seconds(process: int) -> float:
    """Seconds that all threads of a process have computed; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
