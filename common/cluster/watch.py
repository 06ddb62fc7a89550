"""The watch: a lost or stuck rank is named within seconds, on every rank.

Each rank's watch is a thread with a store connection of its own, so that it goes on while the main
thread is blocked in a collective. It posts where the rank is. The leader alone reads where all
ranks are, and judges them; the other ranks read the leader's news, and judge the leader. The first
verdict that any rank publishes ends them all.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.distributed import Store

from common.cluster.agreement import STOP, Asked, StopAgreement
from common.cluster.board import Board, is_broken_collective
from common.cluster.connections import OwnLinks
from common.cluster.elastic import elastic
from common.cluster.ending import end_process
from common.cluster.heartbeats import SILENCE_SECONDS, UNHEARD, Heartbeats, Names, beat
from common.cluster.pace import beat_seconds, hurried_seconds
from common.cluster.stopping import Stop
from common.core.failures import Failure, first_line
from common.core.progress import FINISHED, Progress

BLAME_SECONDS = 7.0
BREAK_SECONDS = 0.2
CONNECT_SECONDS = 10.0  # the first answer may take longer: a name server is asked, twice 5 seconds
NEWS = "news"


class News(NamedTuple):
    """News from the leader to all ranks, sent with every beat: plain values, for JSON."""

    beat: Sequence[Any] = UNHEARD
    saved: str | None = None
    asked: Asked | None = None
    alarmed: bool = False


class Answers:
    """When the store has answered last. Somebody must look `every` so many seconds.

    For as many seconds of `silence`, and four looks more, it may be slow.
    """

    def __init__(self, every: float, silence: float = SILENCE_SECONDS) -> None:
        self._every, self._longest = every, silence + 4 * every
        self._looked = time.monotonic()
        self._last = self._looked + CONNECT_SECONDS

    def note(self) -> None:
        """The store has answered."""
        self._last = time.monotonic()

    def silence(self) -> float | None:
        """For how many seconds it has been silent, when that is too long."""
        now = time.monotonic()
        if now - self._looked > 4 * self._every:
            self._last = now  # it is this process that was stopped: ask before judging
        self._looked, silence = now, now - self._last
        return silence if silence > self._longest else None


class Watch:
    """Enter it before anything that may block. Every rank must run one.

    `board` is the main thread's, `connect` opens another connection to its store; `patience` is how
    many seconds a rank may stay in one place while training, `silence` for how many it may be
    stopped, while no collective has broken. `names` says who each rank is, once
    they are known: on the leader all of them, elsewhere at least rank 0 and this rank. Inside, a
    verdict ends this process.
    """

    def __init__(self, board: Board, connect: Callable[[], Store], patience: float, stop: Stop,
                 progress: Progress, silence: float = SILENCE_SECONDS) -> None:
        self.names: Names = []
        self._every = beat_seconds(board.world.size)
        # Where the other ranks are only the leader hears, so no other can say which one is stuck.
        self.heartbeats = Heartbeats(patience if board.world.is_leader else float("inf"),
                                     self._every, silence, board.longer)
        self._board, self._connect = board, connect
        self._stop, self._progress = stop, progress
        self._agreement = StopAgreement(stop, progress)
        self.links = OwnLinks(min(patience, 2 * silence) if elastic() else patience, progress)
        self._count, self._own, self._alarmed = 0, UNHEARD, False
        self._asked: Asked | None = None
        self._begun, self._stopping = threading.Event(), threading.Event()
        self._answers = Answers(self._every, silence)
        self._threads = [threading.Thread(target=self._beat, name="watch", daemon=True),
                         threading.Thread(target=self._guard, name="guard", daemon=True)]

    def __enter__(self) -> "Watch":
        self._stop.wake.clear()
        self._stop.in_group = True
        for thread in self._threads:
            thread.start()
        self._begun.wait()  # so that no rank counts as silent that is still connecting
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """A broken collective has its cause elsewhere: the watch has time to name that rank."""
        if is_broken_collective(error) and not elastic():
            self.heartbeats.collective_failed = True
            self._stop.wake.set()
            time.sleep(BLAME_SECONDS)
        self._stopping.set()
        self._stop.wake.set()
        self._stop.in_group = False
        for thread in self._threads:
            thread.join(timeout=2)
        if error is not None and not elastic():
            with contextlib.suppress(RuntimeError):  # the leader has left
                learn_saved(self._board.store, self._progress)

    def _beat(self) -> None:
        try:
            board, is_over = Board(self._connect(), self._board.world), False
            while not is_over:
                self._post(board)
                self._listen(board)
                self._answers.note()
                self._judge(board)
                self._begun.set()
                is_over = self._pause()
        except Exception as error:
            self._leader_lost(f"the connection to its store failed: {first_line(error)}")

    def _pause(self) -> bool:
        """Waits for the next beat, less long when a signal comes; true when the watch must end."""
        if self._agreement.is_going_on or self._alarmed:
            self._stopping.wait(hurried_seconds(self._board.world.size))
        else:
            self._stop.wake.wait(self._every)
        return self._stopping.is_set()

    def _guard(self) -> None:
        """Ends the process when the store stays silent: a stopped leader closes no connection."""
        while not self._stopping.wait(self._every):
            if silence := self._answers.silence():
                self._leader_lost(f"its store last answered {silence:.1f} s ago")

    def _post(self, board: Board) -> None:
        self._count += 1
        self._own = beat(self._count, self.heartbeats.collective_failed, self._progress)
        board.post("beat", self._own)

    def _listen(self, board: Board) -> None:
        """The leader hears all ranks, and tells its news; the other ranks hear the leader's."""
        ranks = board.world.size if self.names else 0
        if board.world.is_leader:
            self.heartbeats.listen(board.posted("beat") if ranks else {}, ranks)
            news = News(self._own, self._progress.saved, board.read_first(STOP))
        else:
            news = News(*(board.told(NEWS) or ()))
            self.heartbeats.listen({0: news.beat}, min(ranks, 1))
            if self._progress.saved is not None and news.saved is not None:
                self._progress.saved = news.saved
        # Close to a verdict all ranks look more often, so that none is late.
        self._asked = news.asked
        self._alarmed = bool(news.alarmed or self.heartbeats.is_alarmed(self.names))
        if board.world.is_leader:
            board.tell(NEWS, news._replace(alarmed=self._alarmed))

    def _judge(self, board: Board) -> None:
        """Publishes a failure that it finds; ends the process when there is a verdict."""
        failure = (self.heartbeats.lost_rank(self.names)
                   or self.links.lost_link(board.world.rank)
                   or self._agreement.advance(board, self.names, self._asked)
                   or self._change_of_group(board))
        if failure:
            board.publish(failure)
        if verdict := board.verdict():
            if self._breaks_off(verdict):
                return
            learn_saved(board.store, self._progress)
            board.leave(lost=self.heartbeats.silent_ranks())
            self._end_process(verdict)

    def _change_of_group(self, board: Board) -> Failure | None:
        member, is_at_work = elastic(), self._progress.phase != FINISHED
        return member.has_changed() if member and is_at_work and board.world.is_leader else None

    def _leader_lost(self, how: str) -> None:
        self._end_process(self.heartbeats.lost_leader(self.names, self._progress.place(), how))

    def _breaks_off(self, failure: Failure) -> bool:
        """Returns True if the run goes on without whom it has lost; first wakes the main thread.

        Again and again until that has left, since it may wait anew on a connection of later.
        """
        member = elastic()
        if member is None or not member.goes_on_after(failure):
            return False
        if str(failure):  # somebody is lost, not come
            member.note_silent(self.heartbeats.silent_ranks())
        while not self._stopping.is_set():
            member.break_off()
            self._begun.set()
            self._stopping.wait(BREAK_SECONDS)
        return True

    def _end_process(self, failure: Failure) -> None:
        """The main thread may be blocked where nothing can wake it."""
        if not self._stopping.is_set() and not self._breaks_off(failure):
            end_process(str(failure), failure.exit_code)


def learn_saved(store: Store, progress: Progress) -> None:
    """Takes over what the leader says was saved last, once a run has begun here."""
    if progress.saved is not None and store.check(["saved"]):
        progress.saved = store.get("saved").decode()
