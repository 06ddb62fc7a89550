"""Saving every few minutes: the leader's clock decides, and all ranks save after the same step.

No collective is needed. The leader puts its decision on the store before it enters a step, and no
rank can end that step without the leader's gradients: so whoever has ended it finds the decision.
"""

import time

from common.process_group import Node

LOOK_EVERY = 10


class SaveClock:
    """Says after which steps to save because `minutes` have passed since the last checkpoint.

    Every rank must have one; 0 minutes is never. A run's `name` tells it from others on one store.
    Ranks look every 10 steps, which costs one question to the store: 0.1 ms on one machine.
    """

    def __init__(self, name: str = "", minutes: float = 0, node: Node | None = None) -> None:
        self._name = name
        self._seconds = 60 * minutes
        self._node = node
        self._chosen = 0
        self.saved()

    def saved(self) -> None:
        """The minutes count from now."""
        self._since = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether to save, now that `step` steps are done: the same answer on all ranks.

        Every rank must call it after every step.
        """
        if not self._seconds or self._node is None:
            return False
        if self._node.world.is_leader:
            return self._decide(step)
        assert self._node.store is not None
        return step % LOOK_EVERY == 0 and self._node.store.check([self._key(step)])

    def _decide(self, step: int) -> bool:
        """The leader's answer for this step; it may choose the next one that all look at."""
        if step == self._chosen:
            return True
        ahead = step - step % LOOK_EVERY + LOOK_EVERY
        if ahead != self._chosen and time.monotonic() - self._since > self._seconds:
            self._chosen = ahead
            if self._node is not None and self._node.store is not None:
                self._node.store.add(self._key(ahead), 1)  # waits for an answer, unlike set
        return False

    def _key(self, step: int) -> str:
        return f"save/{self._name}/{step}"
