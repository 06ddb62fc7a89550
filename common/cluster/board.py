"""A notice board on the run's store: every rank posts, every rank reads all, nobody waits for ever.

    board.share("card", {"host": "node2"})      # on every rank; returns all values, by rank
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from torch.distributed import Store

from common.cluster.master_port import (
    REMARK_SECONDS,
)
from common.core.failures import Failure, PeerLost, Verdict, first_line
from common.core.world import World

POLL_SECONDS = 0.05

LINGER_SECONDS = 3.0


class Board:
    """`deadline` is a time.monotonic() value, for everything; `say` gets a word on who is missing.

    The first failure that any rank publishes ends every rank's wait.
    """

    def __init__(self, store: Store, world: World, deadline: float,
                 say: Callable[[str], None] = lambda text: None) -> None:
        self.store = store
        self._world = world
        self._deadline = deadline
        self._say = say

    def share(self, topic: str, value: Any, deadline: float | None = None) -> list[Any]:
        """Posts this rank's `value` (plain, for JSON) and returns all ranks'. Every rank must call.

        Raises PeerLost naming who has not posted by the deadline, or the failure that was
        published.
        """
        self.store.set(f"board/{topic}/{self._world.rank}", json.dumps(value))
        deadline, remark = deadline or self._deadline, time.monotonic() + REMARK_SECONDS
        while missing := self._missing(topic):
            self._raise_verdict()
            report = self._report(topic, missing)
            if time.monotonic() > deadline:
                raise PeerLost(f"gave up: {report}; start the missing, or raise --timeout")
            if time.monotonic() > remark:
                self._say(report)
                remark += REMARK_SECONDS
            time.sleep(POLL_SECONDS / 5)
        return self.posted(topic)

    def posted(self, topic: str) -> list[Any]:
        """What has been posted so far, by rank; ranks that have not posted are left out."""
        missing = self._missing(topic)
        return [json.loads(self.store.get(f"board/{topic}/{rank}"))
                for rank in range(self._world.size) if rank not in missing]

    def _missing(self, topic: str) -> list[int]:
        return [rank for rank in range(self._world.size)
                if not self.store.check([f"board/{topic}/{rank}"])]

    def _report(self, topic: str, missing: list[int]) -> str:
        there = self._world.size - len(missing)
        ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        done = "joined" if topic == "card" else f"done with {topic}"
        return f"{there} of {self._world.size} {done}, waiting for {ranks}"

    def _raise_verdict(self) -> None:
        if self.store.check(["verdict"]):
            said = json.loads(self.store.get("verdict"))
            raise Verdict(said["sentence"], said["exit_code"])

    def publish(self, error: Exception) -> Failure:
        """Tells all ranks what failed here; returns the failure that holds, the first one told."""
        here = f"rank {self._world.rank} on {socket.gethostname()}"
        told = error if isinstance(error, Failure) else PeerLost(
            f"{here} failed or lost rank 0 ({first_line(error)})")
        try:
            return publish(self.store, told)
        except RuntimeError:
            return told  # the leader, who serves the store, has left

    def leave(self) -> None:
        """Counts this rank out; the leader, who serves the store, waits a moment for the others."""
        deadline = time.monotonic() + LINGER_SECONDS
        with contextlib.suppress(RuntimeError):
            left = self.store.add("left", 1)
            while (self._world.is_leader and left < self._world.size
                   and time.monotonic() < deadline):
                time.sleep(POLL_SECONDS)
                left = self.store.add("left", 0)


def publish(store: Store, failure: Failure) -> Failure:
    """Makes `failure` the run's verdict unless there is one already; returns the one that holds."""
    mine = json.dumps({"sentence": str(failure), "exit_code": failure.exit_code})
    said = json.loads(store.compare_set("verdict", "", mine))
    return Verdict(said["sentence"], said["exit_code"])


def conclude(store: Store) -> None:
    """Closes the case when all ranks have done everything: no failure can be told any more.

    Without it a signal in the last instant could stop one rank when another has ended already.
    Raises the verdict that was told before.
    """
    verdict = publish(store, Verdict("all ranks have done everything", 0))
    if verdict.exit_code:
        raise verdict
