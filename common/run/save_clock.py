"""Saving every few minutes: the leader's clock decides, and all ranks save after the same step.

No collective is needed. The ranks look only after steps that no rank can end without the leader.
The leader writes its decision to the store before it begins such a step, so every rank that has
ended the step finds the decision.
"""

import time

from common.cluster.node import Node

LOOK_EVERY = 10


class SaveClock:
    """Says after which steps to save because `minutes` have passed since the last checkpoint.

    Every rank must have one; 0 minutes is never. A run's `name` tells it from others on one store.
    Ranks look every 10 steps at most, which costs one read of the store: 0.1 ms on one machine.
    """

    def __init__(self, name: str = "", minutes: float = 0, node: Node | None = None) -> None:
        self._name = name
        self._seconds = 60 * minutes
        self._node = node
        self._looked_at, self._looks, self._chosen = 0, 0, 0
        self.saved()

    def saved(self) -> None:
        """Restarts the clock: a checkpoint has just been written."""
        self._since = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Returns True if it is time to save after `step` steps: the same answer on all ranks.

        Every rank must call it after the same steps: those that no rank ends without the leader.
        """
        if not self._seconds or self._node is None:
            return False
        is_look = self.is_look(step)
        if is_look:
            self._looked_at, self._looks = step, self._looks + 1
        if self._node.world.is_leader:
            return self._decide(is_look)
        assert self._node.store is not None
        return is_look and self._node.store.check([self._key(self._looks)])

    def is_look(self, step: int) -> bool:
        """Returns True if `is_due` would look at the clock after `step` steps."""
        return bool(self._seconds) and step - self._looked_at >= LOOK_EVERY

    def _decide(self, is_look: bool) -> bool:
        """The leader's answer for this step; it may choose the next look for all ranks."""
        if is_look and self._looks == self._chosen:
            return True
        if time.monotonic() - self._since > self._seconds:
            self._chosen = self._looks + 1
            if self._node is not None and self._node.store is not None:
                self._node.store.add(self._key(self._chosen), 1)  # waits for an answer, unlike set
        return False

    def _key(self, look: int) -> str:
        return f"save/{self._name}/{look}"
