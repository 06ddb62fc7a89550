"""Values that the ranks of a run post on its store, and ways to read them.

    Posts(store, world).post("facts", {"cores": 4})
"""

import json
from collections.abc import Sequence
from typing import Any

from torch.distributed import Store

from common.core.world import World

ABSENT = "-"  # stands for no value, as it is not valid JSON


class Posts:
    """Values are plain, for JSON. A topic has one value a rank, or one that is told to all.

    What has been posted or told once stays, so whether it is there is not asked again.
    """

    def __init__(self, store: Store, world: World) -> None:
        self.world = world
        self.store = store
        self._complete: set[str] = set()

    def post(self, topic: str, value: Any) -> None:
        """Lets all ranks read this rank's value, in the place of an earlier one."""
        self.store.set(key_of(topic, self.world.rank), json.dumps(value))

    def posted(self, topic: str) -> dict[int, Any]:
        """Values posted so far, by rank. For the leader only, as it reads N values."""
        if (values := self.all_posted(topic)) is not None:
            return dict(enumerate(values))
        ranks = self.present(topic, range(self.world.size))
        values = self.store.multi_get([key_of(topic, rank) for rank in ranks]) if ranks else []
        return dict(zip(ranks, map(json.loads, values), strict=True))

    def posted_by(self, rank: int, topic: str) -> Any:
        """One rank's value, which must have been posted."""
        return json.loads(self.store.get(key_of(topic, rank)))

    def all_posted(self, topic: str) -> list[Any] | None:
        """Every rank's value, by rank, once all have posted; None before. For the leader."""
        keys = self.keys(topic)
        if not self._is_complete(topic, keys):
            return None
        return [json.loads(value) for value in self.store.multi_get(keys)]

    def _is_complete(self, topic: str, keys: list[str]) -> bool:
        if topic not in self._complete and self.store.check(keys):
            self._complete.add(topic)
        return topic in self._complete

    def present(self, topic: str, ranks: Sequence[int]) -> list[int]:
        """The ranks that have posted, found by bisection: usually all or nearly all have."""
        if self.store.check([key_of(topic, rank) for rank in ranks]):
            return list(ranks)
        half = len(ranks) // 2
        return self.present(topic, ranks[:half]) + self.present(topic, ranks[half:]) \
            if half else []

    def tell(self, topic: str, value: Any) -> None:
        """Sets the topic's one value, in the place of an earlier one. Only one rank may call."""
        self.store.set(told_key(topic), json.dumps(value))

    def told(self, topic: str) -> Any:
        """The leader's last announcement on `topic`; None before the first."""
        return self._read(told_key(topic))

    def first(self, topic: str, value: Any) -> Any:
        """Sets the topic's one value unless a rank has set it before; returns what holds."""
        return json.loads(self.store.compare_set(f"first/{topic}", "", json.dumps(value)))

    def read_first(self, topic: str) -> Any:
        """The value that the first rank set; None when no rank has."""
        return self._read(f"first/{topic}")

    def _read(self, key: str) -> Any:
        """A key's value, None where it has none: one request, where asking first needs three."""
        value = self.store.compare_set(key, ABSENT, ABSENT).decode()
        return None if value == ABSENT else json.loads(value)

    def keys(self, topic: str) -> list[str]:
        """Where the ranks post, by rank."""
        return [key_of(topic, rank) for rank in range(self.world.size)]


def key_of(topic: str, rank: int) -> str:
    return f"board/{topic}/{rank}"


def told_key(topic: str) -> str:
    return f"told/{topic}"
