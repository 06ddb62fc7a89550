"""Ranks that wait for each other for ever though none is lost, told from those that are slow.

A thread on each rank posts how far it is. That it waits proves nothing: a link may be silent, or
another rank slow. A standstill is that every rank waits, or has left its loop, while no thread of
theirs runs and not one byte is on its way between them: then nothing can happen any more.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed import Store

from common.cluster.board import Board
from common.cluster.connections import holds_bytes
from common.cluster.fate import state_of
from common.core.failures import RanksDisagree
from common.core.world import World
from common.run.waits import Mark, Whereabouts
from common.witnessing.rows import uneven

BEAT_SECONDS = 1.0
QUIET_SECONDS = 3.0
CONFIRMED = 2  # beats that every rank must post once all were quiet: none speaks of a time before
_LOOKS, _BETWEEN_LOOKS = 4, 0.01
_RUNS = "RD"  # as the kernel writes it: runs or could run, waits for a disk
_WHERE = {"sync": "in a collective", "backward": "in backward", "forward": "in forward"}


class RankProgress(NamedTuple):
    """A rank's post on its progress: plain values, for JSON.

    `is_quiet` says that for QUIET_SECONDS it has waited, or ended its loop, and nothing has moved
    in its process or was on its way. `length` is its loader's number of batches, if known.
    """

    beat: int
    is_quiet: bool
    has_ended: bool
    mark: Sequence[Any]
    length: int | None = None

    @property
    def at(self) -> Mark:
        return Mark(*self.mark)


class Standstill:
    """A context in which a standstill is found, by a thread; every rank must enter.

    `connect` opens another connection to the run's store, which listens on `port`. The verdict is
    published on the board: the watch of every rank ends its process.
    """

    def __init__(self, connect: Callable[[], Store], port: int, world: World, here: Whereabouts,
                 length: int | None) -> None:
        self._connect, self._port, self._world, self._here = connect, port, world, here
        self._length, self._beat = length, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="standstill", daemon=True)
        self._last: tuple[Mark, float] = here.how_far(), 0.0
        self._moved = self._looked = time.monotonic()
        self._seen: dict[int, int] = {}

    def __enter__(self) -> "Standstill":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(timeout=2)

    def _look(self) -> None:
        try:
            board = Board(self._connect(), self._world)
            while not self._over.wait(BEAT_SECONDS):
                board.post("place", self._place())
                if self._world.is_leader and (sentence := self._judge(board.posted("place"))):
                    board.publish(RanksDisagree(sentence))
                    return
        except RuntimeError:
            return  # the store is gone, and the watch says so

    def _place(self) -> RankProgress:
        here, now = self._here, time.monotonic()
        mark, ended = here.how_far(), here.has_ended
        state = mark, 0.0 if ended else here.processor_time()
        was_away = now - self._looked > max(QUIET_SECONDS / 2, 2 * BEAT_SECONDS)  # or was stopped
        waits = ended or (mark.waiting and here.is_asleep())
        if (state != self._last or was_away or not waits or is_running()
                or holds_bytes(self._port)):
            self._last, self._moved = state, now
        self._looked, self._beat = now, self._beat + 1
        is_quiet = now - self._moved >= QUIET_SECONDS
        return RankProgress(self._beat, is_quiet, ended, mark, self._length)

    def _judge(self, posted: Mapping[int, Sequence[Any]]) -> str:
        """The sentence once all ranks have been quiet at one time, "" before."""
        places = {rank: RankProgress(*values) for rank, values in posted.items()}
        if len(places) < self._world.size or not all(each.is_quiet for each in places.values()):
            self._seen = {}
            return ""
        self._seen = self._seen or {rank: each.beat for rank, each in places.items()}
        is_sure = all(each.beat >= self._seen[rank] + CONFIRMED for rank, each in places.items())
        return standstill(places) if is_sure else ""


def is_running() -> bool:
    """True if another thread of this process runs, or could run, or if that is unknown.

    One that serves for a moment, such as the store's, does not run at each of a few looks.
    """
    running = _running()
    for _ in range(_LOOKS):
        if not running:
            return False
        time.sleep(_BETWEEN_LOOKS)
        running &= _running()
    return bool(running)


def _running() -> set[str]:
    threads, me = Path("/proc/self/task"), str(threading.get_native_id())
    if not threads.exists():
        return {"unknown"}
    return {each for each in os.listdir(threads)
            if each != me and state_of(threads / each) in _RUNS}


def standstill(places: Mapping[int, RankProgress]) -> str:
    """The sentence on ranks that are all quiet; "" where they are at one place.

    So it is where the one that has left its loop took part in as many collectives: then its last
    message is lost or late, and no rank is at fault.
    """
    marks = {rank: place.at for rank, place in places.items()}
    behind, ahead = (extreme(marks, key=lambda rank: marks[rank]) for extreme in (min, max))
    is_stall = marks[behind].rounds == marks[ahead].rounds and (
        places[behind].has_ended or places[ahead].has_ended)
    if marks[behind] == marks[ahead] or is_stall or all(p.has_ended for p in places.values()):
        return ""
    if places[behind].has_ended and marks[behind].batches < marks[ahead].batches:
        return (f"the ranks train unequal numbers of batches: rank {behind} has left its loop "
                f"after {marks[behind].batches}, and rank {ahead} waits for it "
                f"{_where(marks[ahead])}. Give every rank as many, by DistributedSampler or "
                "drop_last=True, or use DistributedDataParallel's join()")
    advice = uneven([places[rank].length for rank in sorted(places)]) or (
        "Every rank must call the model, backward and each collective as often: look for a "
        "`continue`, or a call, that one rank makes alone")
    return (f"the ranks wait for each other, and nothing is on its way between them: rank {behind} "
            f"is behind and {_does(places[behind])}; rank {ahead} {_does(places[ahead])}. {advice}")


def _does(place: RankProgress) -> str:
    if place.has_ended:
        return (f"has left its loop after {place.at.batches} batches, of which it trained "
                f"{place.at.steps}")
    return f"waits {_where(place.at)}"


def _where(mark: Mark) -> str:
    return f"{_WHERE.get(mark.waiting, 'somewhere')} of batch {mark.batches}"
