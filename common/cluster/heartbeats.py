"""What one rank has heard of all ranks, and which of them it considers lost or stuck."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.core.failures import PeerLost
from common.core.progress import FINISHED, Progress

BEAT_SECONDS = 0.5
SILENCE_SECONDS = 6.0
SILENCE_AFTER_ERROR_SECONDS = 2.0
FIRST_STEP_FACTOR = 5.0
LAG_FACTOR = 4.0
LONGEST_LAG = 4 * BEAT_SECONDS
COLLECTIVE = ("sync", "checking", "totals")


@dataclass
class Pulse:
    """A rank's last beat: its number and place, and when this rank heard of it (monotonic)."""

    count: int
    progress: Progress
    heard: float
    moved: float


def beat(count: int, here: Progress) -> list[Any]:
    """What a rank posts: plain values, for JSON."""
    return [count, here.epoch, here.iteration, here.phase, here.has_stepped, here.run]


class Heartbeats:
    """The pulses of all ranks. `patience` is how many seconds a rank may stay in one place.

    `collective_failed` says that a collective of this rank broke, so a rank is likely to be lost.
    """

    def __init__(self, patience: float) -> None:
        self.collective_failed = False
        self._patience = patience
        self._pulses: dict[int, Pulse] = {}
        self._listened = time.monotonic()
        self._lag = 0.0

    def listen(self, beats: Mapping[int, list[Any]], ranks: int) -> None:
        """Takes in what has been posted; a rank that has never posted counts as silent."""
        now = time.monotonic()
        for rank in range(ranks):
            count, *place = beats.get(rank, [0])
            progress, last = Progress(*place), self._pulses.get(rank)
            if last is None or progress != last.progress:
                self._pulses[rank] = Pulse(count, progress, now, now)
            elif count != last.count:
                self._pulses[rank] = Pulse(count, progress, now, last.moved)
        self._excuse_absence(now)

    def _excuse_absence(self, now: float) -> None:
        """Counts no silence against a rank for a time in which this rank did not listen."""
        absence = now - self._listened
        if absence > LONGEST_LAG:
            for pulse in self._pulses.values():
                pulse.heard = min(now, pulse.heard + absence)
                pulse.moved = min(now, pulse.moved + absence)
        # On a machine that starves this thread, other ranks are starved too, and not lost. But a
        # long absence, a suspended machine say, must not put off the next verdict for minutes.
        self._lag = max(min(absence, LONGEST_LAG) - BEAT_SECONDS, 0.9 * self._lag)
        self._listened = now

    def silent_ranks(self) -> set[int]:
        since = time.monotonic() - SILENCE_AFTER_ERROR_SECONDS
        return {rank for rank, pulse in self._pulses.items() if pulse.heard < since}

    def lost_rank(self, names: Sequence[str]) -> PeerLost | None:
        """Which rank is lost or stuck, if any; where one is stuck, a shorter silence suffices."""
        stuck = self._stuck_rank(names)
        if stuck or self.collective_failed:
            return self._silent_rank(names, SILENCE_AFTER_ERROR_SECONDS) or stuck
        return self._silent_rank(names, SILENCE_SECONDS + LAG_FACTOR * self._lag)

    def _silent_rank(self, names: Sequence[str], limit: float) -> PeerLost | None:
        """The rank unheard of for longest, when that is more than `limit` seconds."""
        running = [(pulse.heard, rank) for rank, pulse in self._pulses.items()
                   if pulse.progress.phase != FINISHED]
        heard, rank = min(running, default=(float("inf"), 0))
        silence = time.monotonic() - heard
        if silence < limit:
            return None
        return PeerLost(f"{names[rank]} stopped answering "
                        f"{self._pulses[rank].progress.place()}, last heard {silence:.1f} s ago")

    def _stuck_rank(self, names: Sequence[str]) -> PeerLost | None:
        """The rank that is least far, when it has not moved for longer than its patience."""
        if not self._pulses:
            return None
        rank, pulse = min(self._pulses.items(), key=lambda item: item[1].progress.order())
        seconds = time.monotonic() - pulse.moved
        if seconds < self._limit(pulse.progress):
            return None
        place = pulse.progress.place()
        places = [each.progress.order() for each in self._pulses.values()]
        all_are_here = len(places) > 1 and len(set(places)) == 1
        if pulse.progress.phase in COLLECTIVE and all_are_here:
            return PeerLost(f"all ranks wait for each other {place} for {seconds:.0f} s: the "
                            "network between them fails")
        return PeerLost(f"{names[rank]} is stuck {place} for {seconds:.0f} s (--timeout allows "
                        "more)")

    def _limit(self, here: Progress) -> float:
        if here.phase == FINISHED or here.epoch == 0:
            return float("inf")  # decoding data takes what it takes, and ends by itself
        is_slow = not here.has_stepped or here.phase == "saving"
        return self._patience * (FIRST_STEP_FACTOR if is_slow else 1)
