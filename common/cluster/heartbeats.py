"""Heartbeats of all ranks as the leader hears them, and its verdict on lost or stuck ranks.

The other ranks hear of the leader alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.cluster.pace import BEAT_SECONDS
from common.core.failures import PeerLost
from common.core.progress import CONNECTING, FINISHED, Progress

SILENCE_SECONDS = 6.0
SILENCE_AFTER_ERROR_SECONDS = 2.0
FIRST_STEP_FACTOR = 5.0
LAG_FACTOR = 4.0
CONNECTING_FACTOR = 2.0
LONGEST_LAG_BEATS = 4
COLLECTIVE = ("sync", "checking", "totals", CONNECTING)
MAY_WAIT = (*COLLECTIVE, "forward", "backward")  # with DDP, which hides its collectives there
UNHEARD: Sequence[Any] = [0, False]  # the beat of a rank that has posted none
Names = Sequence[str] | Mapping[int, str]


@dataclass
class Pulse:
    """A rank's last beat: its number and place, and when this rank heard of it (monotonic).

    `failed` says that a collective broke there, so that another rank is likely to be lost.
    """

    count: int
    failed: bool
    progress: Progress
    heard: float
    moved: float


def beat(count: int, failed: bool, here: Progress) -> list[Any]:
    """The heartbeat that a rank posts, as plain values for JSON."""
    return [count, failed, here.epoch, here.iteration, here.phase, here.has_stepped, here.run]


class Heartbeats:
    """The pulses of the ranks that are listened to, one beat every `every` seconds.

    `patience` is how many seconds a rank may stay in one place, and `longer` what the user sets to
    allow more; `silence` for how many a rank may not be heard of. `collective_failed` says that a
    collective of this rank broke. `fate` says what became of a silent rank's process, where that
    can be seen.
    """

    def __init__(self, patience: float, every: float = BEAT_SECONDS,
                 silence: float = SILENCE_SECONDS, longer: str = "--timeout") -> None:
        self.collective_failed = False
        self.fate: Callable[[int], str] = lambda rank: ""
        self._patience, self._silence, self._longer = patience, silence, longer
        self._every = every
        # Half a second is the time between beats of up to 512 ranks; rarer ones are waited for.
        self._slack = 4 * (every - BEAT_SECONDS)
        self._pulses: dict[int, Pulse] = {}
        self._listened = time.monotonic()
        self._lag = 0.0

    def listen(self, beats: Mapping[int, Sequence[Any]], ranks: int) -> None:
        """Takes in what has been posted; a rank that has never posted counts as silent."""
        now = time.monotonic()
        for rank in range(ranks):
            count, failed, *place = beats.get(rank, UNHEARD)
            progress, last = Progress(*place), self._pulses.get(rank)
            if last is None or progress != last.progress:
                self._pulses[rank] = Pulse(count, failed, progress, now, now)
            elif count != last.count:
                self._pulses[rank] = Pulse(count, failed, progress, now, last.moved)
        self._excuse_absence(now)

    def _excuse_absence(self, now: float) -> None:
        """Counts no silence against a rank for a time in which this rank did not listen."""
        absence, longest = now - self._listened, LONGEST_LAG_BEATS * self._every
        if absence > longest:
            for pulse in self._pulses.values():
                pulse.heard = min(now, pulse.heard + absence)
                pulse.moved = min(now, pulse.moved + absence)
        # On a machine that starves this thread, other ranks are starved too, and not lost. But a
        # long absence, a suspended machine say, must not put off the next verdict for minutes.
        self._lag = max(min(absence, longest) - self._every, 0.9 * self._lag)
        self._listened = now

    def silent_ranks(self) -> set[int]:
        since = time.monotonic() - SILENCE_AFTER_ERROR_SECONDS
        return {rank for rank, pulse in self._pulses.items() if pulse.heard < since}

    def lost_rank(self, names: Names, ahead: float = 0.0) -> PeerLost | None:
        """The rank that is lost or stuck, if any; where one is stuck, a shorter silence suffices.

        Judged as of `ahead` seconds from now, if nothing more were heard.
        """
        now = time.monotonic() + ahead
        stuck = self._stuck_rank(names, now)
        if stuck or self.collective_failed or any(p.failed for p in self._pulses.values()):
            limit = SILENCE_AFTER_ERROR_SECONDS + self._slack / 2
            return self._silent_rank(names, now, limit) or stuck
        return self._silent_rank(names, now,
                                 self._silence + self._slack + LAG_FACTOR * self._lag)

    def is_alarmed(self, names: Names) -> bool:
        """Returns True if a rank is close to being lost, or a collective of this rank failed."""
        return self.collective_failed or self.lost_rank(names, 2 * self._every) is not None

    def lost_leader(self, names: Names, place: str, how: str) -> PeerLost:
        """The error on a rank that no longer reaches the leader's store."""
        name = names[0] if names else "rank 0"
        return PeerLost(f"{name}, the leader, is lost {place}: {how}{self.fate(0)}")

    def _silent_rank(self, names: Names, now: float, limit: float) -> PeerLost | None:
        """The rank unheard of for longest, when that is more than `limit` seconds."""
        running = [(pulse.heard, rank) for rank, pulse in self._pulses.items()
                   if pulse.progress.phase != FINISHED]
        heard, rank = min(running, default=(float("inf"), 0))
        silence = now - heard
        if silence < limit:
            return None
        return PeerLost(f"{names[rank]} stopped answering "
                        f"{self._pulses[rank].progress.place()}, last heard {silence:.1f} s ago"
                        f"{self.fate(rank)}")

    def _stuck_rank(self, names: Names, now: float) -> PeerLost | None:
        """The rank that is least far, when it has not moved for longer than its patience."""
        if not self._pulses:
            return None
        rank, pulse = min(self._pulses.items(), key=lambda item: item[1].progress.order())
        seconds = now - pulse.moved
        if seconds < self._limit(pulse.progress):
            return None
        place = pulse.progress.place()
        places = [each.progress.order() for each in self._pulses.values()]
        all_are_here = len(places) > 1 and len(set(places)) == 1
        if pulse.progress.phase in COLLECTIVE and all_are_here:
            return PeerLost(f"all ranks wait for each other {place} for {seconds:.0f} s: the "
                            "network between them fails")
        return PeerLost(f"{names[rank]} is stuck {place} for {seconds:.0f} s"
                        f"{self._pair(rank, names)} ({self._longer} allows more)")

    def _pair(self, behind: int, names: Names) -> str:
        """Where the rank is that has come furthest, if a rank that waits may wait for that one."""
        here = self._pulses[behind].progress
        ahead, pulse = max(self._pulses.items(), key=lambda item: item[1].progress.order())
        if here.phase not in MAY_WAIT or pulse.progress.order() == here.order():
            return ""
        return (f"; it is behind {names[ahead]}, which is {pulse.progress.place()}: one of the two "
                "waits for what the other does not send")

    def _limit(self, here: Progress) -> float:
        if here.phase == CONNECTING:
            return CONNECTING_FACTOR * self._patience
        if here.phase == FINISHED or here.epoch == 0:
            return float("inf")  # decoding data takes what it takes, and ends by itself
        is_slow = not here.has_stepped or here.phase == "saving"
        return self._patience * (FIRST_STEP_FACTOR if is_slow else 1)
