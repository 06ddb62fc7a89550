"""Stopping on a signal: notes that one has come, and the boundary at which to stop.

A boundary is an instant between two steps, or after an epoch, where a run can be saved. All ranks
pass the same boundaries in the same order, so their count says where a rank is.
"""

import functools
import signal
import threading
from typing import NoReturn

from common.core.failures import Verdict
from common.core.progress import process_progress

# SIGHUP, a lost terminal, ends a run as SIGTERM does.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143, signal.SIGUSR1: 75}
GRACE_SECONDS = 20.0


class Stop:
    """State shared by the main thread, the watch and the thread that reads signals.

    `in_group` is true while a watch runs, which agrees with the other ranks on the boundary;
    `is_over` once all ranks have done everything. `wake` is set when a signal comes.
    `needs_saving` says whether steps were taken since the last checkpoint.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.in_group = False
        self.is_over = False
        self.wake = threading.Event()
        self._change = threading.Condition()
        self._passed = 0
        self.needs_saving = False
        self._passed_when_frozen: int | None = None
        self._target: int | None = None
        self._done = False

    def reset(self) -> None:
        """Call before this process joins another group, whose boundaries count from 0."""
        with self._change:
            self._passed, self.needs_saving, self._done = 0, False, False
            self._passed_when_frozen = self._target = None

    @property
    def is_stopping(self) -> bool:
        """True if the ranks are agreeing on a boundary, or have agreed."""
        return self._passed_when_frozen is not None

    def begin_step(self) -> None:
        """From now on there is something to save. Main thread only, as the next three."""
        with self._change:
            self.needs_saving = True

    def saved(self) -> None:
        """A checkpoint was written or at least tried; call it on every rank, at the same step."""
        with self._change:
            self.needs_saving = False

    def boundary(self) -> bool:
        """Counts a boundary; true at the one where all ranks stop. May wait about a second.

        The caller saves if `needs_saving`, and then calls `end`.
        """
        with self._change:
            self._passed += 1
            self._change.wait_for(lambda: self._passed_when_frozen is None
                                  or self._target is not None)
            if self._target is not None and self._passed > self._target:
                self._change.wait()  # all other ranks have stopped: the watch ends this process too
            return self._target == self._passed

    def end(self) -> NoReturn:
        """Ends the run, now that all is saved; in a group by waiting for the watch."""
        with self._change:
            self._done = True
            while self.in_group:
                self._change.wait()
        why, code = self.reason()
        raise Verdict(f"{why} {process_progress().place()}", code)

    def reason(self) -> tuple[str, int]:
        """The words for the signal, and its exit code."""
        assert self.signal is not None
        return f"stopped by {self.signal.name}", EXIT_CODES[self.signal]

    def freeze(self) -> int:
        """From now on at most one more boundary is passed before `stop_at`.

        Returns the first boundary at which this process has nothing to lose. For the watch, as the
        next two; or, in a process without a group, for the thread that reads signals.
        """
        with self._change:
            self._passed_when_frozen = self._passed
            return self._passed + int(self.needs_saving)

    def stop_at(self, boundary: int) -> None:
        """All ranks stop at `boundary`, which must not be before what any rank's `freeze` said."""
        with self._change:
            self._target = boundary
            self._change.notify_all()

    def is_done(self) -> bool:
        """True if this process has reached the boundary, and saved what had to be saved there."""
        frozen, target = self._passed_when_frozen, self._target
        return self._done or (frozen is not None and target is not None and frozen >= target)


@functools.cache
def process_stop() -> Stop:
    """The one Stop of this process: signals belong to processes."""
    return Stop()
