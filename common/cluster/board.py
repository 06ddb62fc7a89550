"""A board on the run's store: every rank posts a value, and reads what all ranks posted.

    board.share("data", dataset.digest)      # on every rank; returns all values, by rank
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

import torch.distributed as dist
from torch.distributed import Store

from common.core.failures import Failure, PeerLost, Verdict, first_line
from common.core.world import World

POLL_SECONDS = 0.01
REMARK_SECONDS = 3.0
LINGER_SECONDS = 5.0
FOREVER = float("inf")
JOINED = "joined"
ALL_DONE = Verdict("all ranks have done everything", 0)


class Board:
    """Values are plain, for JSON; `say` prints every three seconds which ranks are missing.

    `deadline` is a time.monotonic() value, for every wait that has none of its own.
    """

    def __init__(self, store: Store, world: World, say: Callable[[str], None] = lambda text: None,
                 deadline: float = FOREVER) -> None:
        self.world = world
        self.store = store
        self._say = say
        self._deadline = deadline

    def post(self, topic: str, value: Any) -> None:
        """Lets all ranks read this rank's value, in the place of an earlier one."""
        self.store.set(self._key(topic, self.world.rank), json.dumps(value))

    def posted(self, topic: str) -> dict[int, Any]:
        """What has been posted so far, by rank."""
        keys = {rank: self._key(topic, rank) for rank in range(self.world.size)}
        return {rank: json.loads(self.store.get(key)) for rank, key in keys.items()
                if self.store.check([key])}

    def first(self, topic: str, value: Any) -> Any:
        """Sets the topic's one value unless a rank has set it before; returns what holds."""
        return json.loads(self.store.compare_set(f"first/{topic}", "", json.dumps(value)))

    def read_first(self, topic: str) -> Any:
        """The value that the first rank set; None when no rank has."""
        key = f"first/{topic}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def share(self, topic: str, value: Any, deadline: float | None = None,
              hint: str = "") -> list[Any]:
        """Posts `value` and returns all ranks' values, by rank. Every rank must call.

        Raises the failure that any rank published meanwhile; PeerLost naming the missing ranks at
        the deadline. `hint` says why they may be missing.
        """
        self.post(topic, value)
        deadline, remark = deadline or self._deadline, time.monotonic() + REMARK_SECONDS
        while not self.store.check([self._key(topic, rank) for rank in range(self.world.size)]):
            if verdict := self.verdict():
                raise verdict
            if (now := time.monotonic()) > deadline:
                raise PeerLost(f"gave up: {self._report(topic)}; start the missing, or raise "
                               f"--timeout{hint}")
            if now > remark:
                self._say(self._report(topic) + hint)
                remark += REMARK_SECONDS
            time.sleep(POLL_SECONDS)
        return list(self.posted(topic).values())

    def _report(self, topic: str) -> str:
        posted = self.posted(topic)
        missing = [str(rank) for rank in range(self.world.size) if rank not in posted]
        done = topic if topic == JOINED else f"done with {topic}"
        return (f"{self.world.size - len(missing)} of {self.world.size} {done}, waiting for "
                f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}")

    def _key(self, topic: str, rank: int) -> str:
        return f"board/{topic}/{rank}"

    def verdict(self) -> Verdict | None:
        """The failure that a rank published first, if any."""
        said = self.read_first("verdict")
        return Verdict(*said) if said and said[1] else None

    def publish(self, error: BaseException) -> Failure:
        """Makes `error` the verdict unless there is one already; returns the one that holds."""
        failure = error if isinstance(error, Failure) else PeerLost(
            f"rank {self.world.rank} on {socket.gethostname()} failed: {first_line(error)}")
        try:
            return Verdict(*self.first("verdict", [str(failure), failure.exit_code]))
        except RuntimeError:
            return failure  # the leader, which serves the store, has left

    def conclude(self) -> None:
        """Call when all ranks have done everything: from now on no rank can publish a failure.

        Without it a signal in the last instant could stop one rank when another has ended already.
        Raises the verdict that was published before.
        """
        verdict = self.publish(ALL_DONE)
        if verdict.exit_code:
            raise verdict

    def leave(self, lost: Collection[int] = ()) -> None:
        """Call last. The leader, which serves the store, waits a moment for the other ranks.

        It does not wait for those that are `lost`; a late one shall still read the verdict.
        """
        deadline = time.monotonic() + LINGER_SECONDS
        expected = set(range(self.world.size)) - set(lost)
        with contextlib.suppress(RuntimeError):  # the leader has left
            self.post("left", True)
            while (self.world.is_leader and expected - self.posted("left").keys()
                   and time.monotonic() < deadline):
                time.sleep(POLL_SECONDS)


def is_broken_collective(error: BaseException | None) -> bool:
    """Whether another rank, or the network, is the likely cause of `error`."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
