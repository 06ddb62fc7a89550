"""A board on the run's store: every rank posts a value, and the leader decides on all of them.

    board.collect("data", dataset.digest, decide)   # on every rank; returns what `decide` returned

No rank but the leader reads what every rank posted, so N ranks need O(N) operations in all.
"""

import contextlib
import re
import socket
import time
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import Store

from common.cluster.pace import poll_seconds
from common.cluster.posts import Posts, key_of, told_key
from common.core.failures import Failure, PeerLost, Verdict, first_line
from common.core.world import World

REMARK_SECONDS = 3.0
LINGER_SECONDS = 5.0
FOREVER = float("inf")
JOINED = "joined"
SENT_AWAY = "sent away"  # the store's key of who came last with another token
GLOO_SOURCE = re.compile(r"\bgloo/\S+\.(cc|cpp|h|hpp):\d+\]")
ALL_DONE = Verdict("all ranks have done everything", 0)


class Board(Posts):
    """Posts, and the waits for them. `say` prints every three seconds which ranks are missing.

    A topic can be collected once. `deadline` is a time.monotonic() value, for every wait that has
    none of its own; `longer` is how the user asks for a later one.
    """

    def __init__(self, store: Store, world: World, say: Callable[[str], None] = lambda text: None,
                 deadline: float = FOREVER, longer: str = "--timeout") -> None:
        super().__init__(store, world)
        self.longer = longer
        self._say = say
        self._deadline = deadline

    def collect(self, topic: str, value: Any, decide: Callable[[list[Any]], Any],
                deadline: float | None = None, hint: str = "") -> Any:
        """Posts `value`; returns, on every rank, what `decide` makes of all ranks' values.

        Every rank must call. The leader calls `decide` with the values, by rank; a failure that it
        raises must be published there. Raises the failure that any rank published meanwhile;
        PeerLost naming the missing ranks at the deadline. `hint` says why they may be missing.
        """
        self.post(topic, value)
        keys = self.keys(topic) if self.world.is_leader else [told_key(topic)]
        self._wait(topic, keys, deadline or self._deadline, hint)
        if self.world.is_leader:
            self.tell(topic, decide(self.all_posted(topic) or []))
        return self.told(topic)

    def share(self, topic: str, value: Any) -> list[Any]:
        """`collect` for few ranks: returns all ranks' values, by rank, on every rank."""
        return self.collect(topic, value, list)

    def _wait(self, topic: str, keys: list[str], deadline: float, hint: str) -> None:
        remark, looks = time.monotonic() + REMARK_SECONDS, 0
        while not self.store.check(keys):
            if verdict := self.verdict():
                raise verdict
            if (now := time.monotonic()) > deadline:
                raise PeerLost(f"gave up: {self._report(topic)}; start the missing, or raise "
                               f"{self.longer}{hint}")
            if now > remark:
                self._say(self._remark(topic) + hint)
                remark += REMARK_SECONDS
            looks += 1
            time.sleep(poll_seconds(self.world.size, looks))

    def _remark(self, topic: str) -> str:
        """Remark on the missing ranks: the leader looks, and the other ranks repeat its remark."""
        if self.world.is_leader:
            self.tell(f"missing {topic}", self._report(topic))
        return self.told(f"missing {topic}") or f"waiting for rank 0 to be done with {topic}"

    def _report(self, topic: str) -> str:
        posted = self.present(topic, range(self.world.size))
        missing = [str(rank) for rank in sorted(set(range(self.world.size)) - set(posted))]
        done = topic if topic == JOINED else f"done with {topic}"
        return (f"{len(posted)} of {self.world.size} {done}, waiting for "
                f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}{self._sent_away()}")

    def _sent_away(self) -> str:
        """Remark on the last rank that was refused: it may be a missing one, started wrongly."""
        if not self.store.check([SENT_AWAY]):
            return ""
        return (f" ({self.store.get(SENT_AWAY).decode()} came with another RUN_TOKEN, and was sent "
                "away: give all ranks of a job the same)")

    def verdict(self) -> Verdict | None:
        """The failure that a rank published first, if any."""
        verdict = self.read_first("verdict")
        return Verdict(*verdict) if verdict and verdict[1] else None

    def publish(self, error: BaseException) -> Failure:
        """Makes `error` the verdict unless there is one already; returns the one that holds."""
        failure = error if isinstance(error, Failure) else PeerLost(
            f"rank {self.world.rank} on {socket.gethostname()} failed: {first_line(error)}")
        try:
            return Verdict(*self.first("verdict", [str(failure), failure.exit_code]))
        except RuntimeError:
            return failure  # the leader, which serves the store, has left

    def fail(self, error: BaseException) -> NoReturn:
        """Publishes `error` and raises the failure that was published first: `error`, or a Verdict.

        An `error` that is neither a Failure nor a broken collective is a fault of this rank, and
        raised as it is.
        """
        verdict = self.publish(error)
        is_of_all = isinstance(error, Failure) or is_broken_collective(error)
        if is_of_all and str(verdict) != str(error):
            raise verdict from error
        raise error

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
        deadline, looks = time.monotonic() + LINGER_SECONDS, 0
        expected = [key_of("left", rank) for rank in range(self.world.size) if rank not in lost]
        with contextlib.suppress(RuntimeError):  # the leader has left
            self.post("left", True)
            while (self.world.is_leader and not self.store.check(expected)
                   and time.monotonic() < deadline):
                looks += 1
                time.sleep(poll_seconds(self.world.size, looks))


def is_broken_collective(error: BaseException | None) -> bool:
    """Returns True if another rank, or the network, is the likely cause of `error`.

    gloo raises plain RuntimeErrors, which begin with the line of its source that failed.
    """
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and bool(GLOO_SOURCE.search(str(error))))
