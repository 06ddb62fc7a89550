"""Heartbeats: a lost or stuck rank is named within seconds, on every rank.

Each rank's watch is a thread with a store connection of its own, so that it goes on while the main
thread is blocked in a collective. It publishes where the rank is and reads where the others are.
The first verdict that anyone publishes is everybody's verdict.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import PrefixStore, Store

from common.cluster.agreement import StopAgreement
from common.cluster.board import publish
from common.cluster.signals import Stop
from common.core.failures import Failure, PeerLost, Verdict, first_line
from common.core.progress import FINISHED, Progress
from common.core.world import World

BEAT_SECONDS = 0.5
STOPPING_BEAT_SECONDS = 0.05
SILENCE_SECONDS = 6.0
SILENCE_AFTER_ERROR_SECONDS = 2.0
FIRST_STEP_FACTOR = 5.0
LINGER_SECONDS = 3.0
LAG_FACTOR = 4.0
COLLECTIVE = ("sync", "checking", "totals")


@dataclass
class Pulse:
    """What this rank has heard of another one, and when (monotonic seconds)."""

    text: str
    progress: Progress
    heard: float
    moved: float


class Watch:
    """Started before anything that may block, stopped after it. Every rank must run one.

    `connect` opens a new store connection; `names` says who each rank is, once they are known;
    `patience` is how many seconds a rank may stay in one place while training; `stop` says where
    this rank is, and whether a signal has come.
    """

    def __init__(self, connect: Callable[[], Store], world: World, patience: float,
                 stop: Stop) -> None:
        self.progress = stop.progress
        self.names: list[str] = []
        self.collective_failed = False
        self._stop = stop
        self._agreement = StopAgreement(stop, world)
        self._connect = connect
        self._world = world
        self._patience = patience
        self._pulses: dict[int, Pulse] = {}
        self._stopping = threading.Event()
        self._answered = self._listened = time.monotonic()
        self._lag = 0.0
        self._threads = [threading.Thread(target=self._beat, name="watch", daemon=True),
                         threading.Thread(target=self._guard, name="guard", daemon=True)]

    def start(self) -> None:
        """Starts the heartbeat; from now on a verdict ends this process."""
        self._stop.in_group = True
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the heartbeat; from now on a verdict is the caller's business."""
        self._stopping.set()
        self._stop.wake.set()
        self._stop.in_group = False
        for thread in self._threads:
            thread.join(timeout=2)

    def _beat(self) -> None:
        """Publishes, listens and judges, twice a second, until stopped."""
        try:
            store = PrefixStore(f"attempt{self._world.attempt}", self._connect())
            count = 0
            while not self._pause():
                count += 1
                self._publish_beat(store, count)
                self._listen(store)
                self._answered = time.monotonic()
                self._excuse_absence()
                self._judge(store)
        except Exception as error:
            if not self._stopping.is_set():
                self._leave(self._leader_lost(f"its store broke off: {first_line(error)}"))

    def _pause(self) -> bool:
        """Waits for the next beat, less long when a signal comes; true when the watch must end."""
        if self._agreement.is_going_on:
            self._stopping.wait(STOPPING_BEAT_SECONDS)
        else:
            self._stop.wake.wait(BEAT_SECONDS)
        return self._stopping.is_set()

    def _excuse_absence(self) -> None:
        """Counts no silence against the others for a time in which this rank did not listen."""
        now = time.monotonic()
        absence = now - self._listened
        if absence > 4 * BEAT_SECONDS:
            for pulse in self._pulses.values():
                pulse.heard = min(now, pulse.heard + absence)
                pulse.moved = min(now, pulse.moved + absence)
        # On a machine that starves this thread, others are starved too, and not lost. But a long
        # absence, a suspended machine say, must not put off the next verdict for minutes.
        self._lag = max(min(absence, 4 * BEAT_SECONDS) - BEAT_SECONDS, 0.9 * self._lag)
        self._listened = now

    def _guard(self) -> None:
        """Leaves when the store stays silent: a stopped leader closes no connection."""
        slept_from = time.monotonic()
        while not self._stopping.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - slept_from > 4 * BEAT_SECONDS:
                self._answered = now  # it is this process that was stopped: ask before judging
            slept_from, silence = now, now - self._answered
            if silence > SILENCE_SECONDS + 4 * BEAT_SECONDS:
                self._leave(self._leader_lost(f"its store last answered {silence:.1f} s ago"))

    def _publish_beat(self, store: Store, count: int) -> None:
        here = self.progress
        beat = [count, here.epoch, here.iteration, here.phase, here.has_stepped, here.run]
        store.set(f"beat/{self._world.rank}", json.dumps(beat))

    def _listen(self, store: Store) -> None:
        now = time.monotonic()
        for rank in range(len(self.names)):
            text = store.get(f"beat/{rank}").decode() if store.check([f"beat/{rank}"]) else "[0]"
            progress = Progress(*json.loads(text)[1:])
            last = self._pulses.get(rank)
            if last is None or progress != last.progress:
                self._pulses[rank] = Pulse(text, progress, now, now)
            elif text != last.text:
                self._pulses[rank] = Pulse(text, progress, now, last.moved)
        learn_saved(store, self.progress)

    def _judge(self, store: Store) -> None:
        """Publishes a verdict when there is cause, and leaves when there is a verdict."""
        failure = self._lost_rank() or self._agreement.advance(store, self.names)
        if failure:
            publish(store, failure)
        if store.check(["verdict"]):
            said = json.loads(store.get("verdict"))
            if said["exit_code"]:  # else all have done everything: see board.conclude
                self._see_others_out(store)
                self._leave(Verdict(said["sentence"], said["exit_code"]))

    def _see_others_out(self, store: Store) -> None:
        """Counts this rank out; the leader, who serves the store, waits a moment for the others.

        Not for those that are silent: they will not come.
        """
        now = time.monotonic()
        deadline = now + LINGER_SECONDS
        lost = sum(now - pulse.heard > SILENCE_AFTER_ERROR_SECONDS
                   for pulse in self._pulses.values())
        left = store.add("left", 1)
        while (self._world.is_leader and left < self._world.size - lost
               and time.monotonic() < deadline):
            time.sleep(0.1)
            left = store.add("left", 0)

    def _lost_rank(self) -> Failure | None:
        """What is wrong with whom; where all are stuck, a shorter silence tells by whose fault."""
        stuck = self._stuck_rank()
        if stuck or self.collective_failed:
            return self._silent_rank(SILENCE_AFTER_ERROR_SECONDS) or stuck
        return self._silent_rank(SILENCE_SECONDS + LAG_FACTOR * self._lag)

    def _silent_rank(self, limit: float) -> Failure | None:
        """The rank unheard of for longest, when that is more than `limit` seconds."""
        running = [(pulse.heard, rank) for rank, pulse in self._pulses.items()
                   if pulse.progress.phase != FINISHED]
        heard, rank = min(running, default=(float("inf"), 0))
        silence = time.monotonic() - heard
        if silence < limit:
            return None
        return PeerLost(f"{self.names[rank]} stopped answering "
                        f"{self._pulses[rank].progress.place()}, last heard {silence:.1f} s ago")

    def _stuck_rank(self) -> Failure | None:
        """The rank that is least far, when it has not moved for longer than its patience."""
        if not self._pulses:
            return None
        now = time.monotonic()
        rank, pulse = min(self._pulses.items(), key=lambda item: item[1].progress.order())
        if now - pulse.moved < self._limit(pulse):
            return None
        if pulse.progress.phase in COLLECTIVE and self._all_are_at(pulse.progress):
            return PeerLost(f"all ranks wait for each other {pulse.progress.place()} for "
                            f"{now - pulse.moved:.0f} s: the network between them fails")
        return PeerLost(f"{self.names[rank]} is stuck {pulse.progress.place()} for "
                        f"{now - pulse.moved:.0f} s (--timeout allows more)")

    def _all_are_at(self, progress: Progress) -> bool:
        return len(self._pulses) > 1 and all(
            pulse.progress.order() == progress.order() for pulse in self._pulses.values())

    def _limit(self, pulse: Pulse) -> float:
        here = pulse.progress
        if here.phase == FINISHED or here.epoch == 0:
            return float("inf")  # decoding data takes what it takes, and ends by itself
        slow = not here.has_stepped or here.phase == "saving"
        return self._patience * (FIRST_STEP_FACTOR if slow else 1)

    def _leader_lost(self, how: str) -> PeerLost:
        name = self.names[0] if self.names else "rank 0"
        return PeerLost(f"{name}, the leader, is lost {self.progress.place()}: {how}")

    def _leave(self, failure: Failure) -> None:
        """Ends this process at once: its main thread may be blocked where nothing can wake it."""
        if self._stopping.is_set():
            return
        self._stop.leave(str(failure), failure.exit_code)


def learn_saved(store: Store, progress: Progress) -> None:
    """Takes over what the leader says was saved last, once a run has begun here."""
    if progress.saved is not None and store.check(["saved"]):
        progress.saved = store.get("saved").decode()
