"""How all ranks agree, through the store, on the step after which they stop for a signal.

The rank that received the signal asks all. Each rank's watch then freezes its main thread, which
may pass one more boundary at most, and posts the first boundary at which it has nothing to lose.
The leader tells all ranks the largest of these. Every rank can still reach it, as no rank can have
passed it: soon, where the ranks wait for each other in every step. No collective is needed, so it
works while the main threads are blocked.
"""

import time

from common.cluster import stopping
from common.cluster.board import Board
from common.cluster.heartbeats import Names
from common.cluster.stopping import Stop
from common.core.failures import Verdict
from common.core.progress import Progress

STOP = "stop"
Asked = tuple[str, int]  # why to stop, and the exit code


class StopAgreement:
    """One rank's part in the agreement; its watch calls `advance` every now and then."""

    def __init__(self, stop: Stop, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._asked: Asked | None = None
        self._deadline = float("inf")
        self._target: int | None = None

    @property
    def is_going_on(self) -> bool:
        return self._asked is not None or self._stop.signal is not None

    def advance(self, board: Board, names: Names, asked: Asked | None) -> Verdict | None:
        """One move, which never waits. Returns the verdict when time is up, or all may leave.

        The latter on the leader. `names` says who each rank is; as long as it is empty no rank can
        have trained. `asked` is what a rank has asked first, as far as this rank has heard.
        """
        if self._asked is None and not self._begin(board, names, asked):
            return None
        assert self._asked is not None
        why, code = self._asked
        if not names:
            return Verdict(f"{why} before all ranks had joined", code)
        if time.monotonic() > self._deadline:
            return Verdict(f"{why}, and {stopping.GRACE_SECONDS:.0f} s were too short for all "
                           "ranks to save", code)
        if self._target is None and (target := _largest_boundary(board)) is not None:
            self._target = target
            self._stop.stop_at(target)
        if self._stop.is_done():
            board.post("stopped", True)
            if board.world.is_leader and board.all_posted("stopped"):
                return Verdict(f"{why} {self._progress.place()}, and so are all ranks", code)
        return None

    def _begin(self, board: Board, names: Names, asked: Asked | None) -> bool:
        """Asks all ranks to stop, or takes over that one of them asks; false when none does."""
        if self._stop.signal is not None:
            why, code = self._stop.reason()
            who = names[board.world.rank] if names else f"rank {board.world.rank}"
            self._asked = board.first(STOP, [f"{who} was {why}", code])
        else:
            self._asked = asked
        if self._asked is None:
            return False
        self._deadline = time.monotonic() + stopping.GRACE_SECONDS
        board.post("boundary", self._stop.freeze())
        return True


def _largest_boundary(board: Board) -> int | None:
    """The largest boundary; None until the leader announces it, once all ranks have posted."""
    if board.world.is_leader and (boundaries := board.all_posted("boundary")):
        board.tell("boundary", max(boundaries))
    return board.told("boundary")
