"""How all ranks agree, through the store, on the step after which they stop for a signal.

Whoever is told to stop asks all. Each rank's watch then freezes its main thread, which may pass one
more boundary at most, and publishes the first boundary at which it has nothing to lose. The largest
of these is one that every rank can still reach, as nobody can have passed it: soon, where the ranks
wait for each other in every step. No collective is needed, so it works while the main threads are
blocked.
"""

import json
import time

from torch.distributed import Store

from common.cluster import signals
from common.cluster.signals import Stop
from common.core.failures import Verdict
from common.core.world import World


class StopAgreement:
    """One rank's part in the agreement; its watch calls `advance` every now and then."""

    def __init__(self, stop: Stop, world: World) -> None:
        self._stop = stop
        self._world = world
        self._asked: tuple[str, int] | None = None
        self._deadline = float("inf")
        self._target: int | None = None
        self._counted = False

    @property
    def is_going_on(self) -> bool:
        return self._asked is not None or self._stop.signal is not None

    def advance(self, store: Store, names: list[str]) -> Verdict | None:
        """One move, which never waits. Returns the verdict when all may leave, or time is up.

        `names` says who each rank is; as long as it is empty nobody can have trained.
        """
        if self._asked is None and not self._begin(store, names):
            return None
        assert self._asked is not None
        why, code = self._asked
        if not names:
            return Verdict(f"{why} before all ranks had joined", code)
        if time.monotonic() > self._deadline:
            return Verdict(f"{why}, and {signals.GRACE_SECONDS:.0f} s were too short for all "
                           "ranks to save", code)
        if self._target is None:
            self._settle(store)
        if self._target is not None and self._everybody_is_done(store):
            return Verdict(f"{why} {self._stop.progress.place()}, and so are all ranks", code)
        return None

    def _begin(self, store: Store, names: list[str]) -> bool:
        """Asks the others, or hears that one of them asks; false when nobody does."""
        if self._stop.signal is not None:
            why, code = self._stop.why()
            who = names[self._world.rank] if names else f"rank {self._world.rank}"
            store.compare_set("stop/asked", "", json.dumps([f"{who} was {why}", code]))
        elif not store.check(["stop/asked"]):
            return False
        why, code = json.loads(store.get("stop/asked"))
        self._asked = (why, code)
        self._deadline = time.monotonic() + signals.GRACE_SECONDS
        store.set(f"stop/reach/{self._world.rank}", str(self._stop.freeze()))
        return True

    def _settle(self, store: Store) -> None:
        keys = [f"stop/reach/{rank}" for rank in range(self._world.size)]
        if store.check(keys):
            self._target = max(int(store.get(key)) for key in keys)
            self._stop.settle(self._target)

    def _everybody_is_done(self, store: Store) -> bool:
        if not self._counted and self._stop.is_done():
            self._counted = True
            store.add("stop/done", 1)
        return self._counted and store.add("stop/done", 0) == self._world.size
