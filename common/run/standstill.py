"""Ranks that wait for each other for ever though none is lost: one has trained fewer batches.

A thread on each rank posts how far it is and whether it waits; the leader's looks at all of them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed import Store

from common.cluster.board import Board
from common.core.failures import RanksDisagree
from common.core.progress import Progress
from common.core.world import World

BEAT_SECONDS = 1.0
IDLE = 0.1  # of a core: a process that uses less does not compute
WAITING_SECONDS, STILL_SECONDS = 5.0, 20.0
TORCH = os.path.dirname(torch.__file__)


class Place(NamedTuple):
    """How many batches a rank has begun, and what it does.

    It is "working", "waiting" in a collective or in backward, where DDP's are, "still" elsewhere,
    or has "ended" its loop.
    """

    batches: int
    state: str


class Whereabouts(Progress):
    """The progress of a loop that does not tell it: its hooks', and what its thread waits in.

    Made in the thread that trains.
    """

    def __init__(self) -> None:
        self.thread, self.batches, self.has_ended = threading.get_ident(), 0, False
        super().__init__()

    @property  # type: ignore[override]
    def phase(self) -> str:
        return self.waits_in() or self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name

    def waits_in(self) -> str:
        """The phase whose torch functions the thread is in: "sync", "backward", or neither: ""."""
        frame: Any = sys._current_frames().get(self.thread)
        while (code := getattr(frame, "f_code", None)) and code.co_filename.startswith(TORCH):
            room = code.co_filename.removeprefix(TORCH).split(os.sep)[1]
            if room in ("distributed", "autograd"):
                return "sync" if room == "distributed" else "backward"
            frame = frame.f_back  # of a thread that has gone on, perhaps no frame any more
        return ""


class Standstill:
    """A context in which ranks that wait for each other for ever are found, by a thread.

    `connect` opens another connection to the run's store. The verdict is published on the board:
    the watch of every rank ends its process.
    """

    def __init__(self, connect: Callable[[], Store], world: World, here: Whereabouts) -> None:
        self._connect, self._world, self._here = connect, world, here
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="standstill", daemon=True)
        self._mark: Any = None
        self._moved = self._looked = time.monotonic()
        self._used = time.process_time()

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
                if self._world.is_leader:
                    found = board.posted("place")
                    if sentence := standstill({rank: Place(*found[rank]) for rank in found},
                                              self._world.size):
                        board.publish(RanksDisagree(sentence))
                        return
        except RuntimeError:
            return  # the store is gone, and the watch says so

    def _place(self) -> Place:
        here, now, used = self._here, time.monotonic(), time.process_time()
        mark = here.batches, here.waits_in()
        if mark != self._mark or used - self._used > IDLE * (now - self._looked):
            self._mark, self._moved = mark, now
        self._looked, self._used = now, used
        if here.has_ended:
            return Place(here.batches, "ended")
        idle = now - self._moved
        if mark[1] and idle > WAITING_SECONDS:
            return Place(here.batches, "waiting")
        return Place(here.batches, "still" if idle > STILL_SECONDS else "working")


def standstill(places: Mapping[int, Place], ranks: int) -> str:
    """The sentence when no rank can go on, "" otherwise.

    A rank that loads data or saves may be still for long: that counts only where another rank has
    left its loop a batch earlier.
    """
    if len(places) < ranks:
        return ""
    behind = min(places, key=lambda rank: places[rank].batches)
    ahead = max(places, key=lambda rank: places[rank].batches)
    has_ended = places[behind].state == "ended"
    motionless = ("ended", "waiting", "still") if has_ended else ("waiting",)
    if (places[behind].batches == places[ahead].batches
            or any(place.state not in motionless for place in places.values())):
        return ""
    does = "has left its loop" if has_ended else "waits in another collective"
    return (f"the ranks train unequal numbers of batches: rank {behind} {does} after "
            f"{places[behind].batches}, and rank {ahead} waits for it in batch "
            f"{places[ahead].batches}. Give every rank as many, by DistributedSampler or "
            "drop_last=True, or use DistributedDataParallel's join()")
