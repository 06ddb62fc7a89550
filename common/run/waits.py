"""Record of the calls that the user's own loop waits in, kept by the training thread itself.

No other thread looks at its frames: while they run they may be freed at any moment.

    with noted(Whereabouts()) as here: ...      # then here.waiting is "sync" within work.wait()
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from common.arithmetic.torch_private import BROADCAST_IN_FORWARD
from common.core.progress import Progress

# Every collective of torch.distributed's ends in Work.wait, but for those that DDP starts in C++:
# its gradients', which end with backward, and its buffers'.
_WAITS = ((Work, "wait", "sync"), (torch.autograd, "backward", "backward"),
          (*BROADCAST_IN_FORWARD, "forward"))


class Mark(NamedTuple):
    """How far a loop is: unchanged for as long as the thread that trains does not go on.

    `rounds` counts the waits that it has begun: collectives and backward passes. `waiting` is the
    phase of the one that it is in, "" in none.
    """

    rounds: int = 0
    batches: int = 0
    steps: int = 0
    waiting: str = ""


class Whereabouts(Progress):
    """The progress of a loop that does not tell it: its hooks', and what its thread waits in.

    Made in the thread that trains, which alone writes it.
    """

    def __init__(self) -> None:
        self.thread, self._kernels_name = threading.get_ident(), threading.get_native_id()
        self.has_ended = False
        self.rounds = self.batches = self.steps = 0
        self.waiting = ""
        self._clock = time.pthread_getcpuclockid(self.thread)
        super().__init__()

    @property  # type: ignore[override]
    def phase(self) -> str:
        return self.waiting or self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name

    def how_far(self) -> Mark:
        return Mark(self.rounds, self.batches, self.steps, self.waiting)

    def is_asleep(self) -> bool:
        """Returns True if the training thread waits for another thread, as torch's waits do.

        It does not while it sleeps, or waits for a file or a server, within a hook of the user's.
        """
        try:
            return "futex" in Path(f"/proc/self/task/{self._kernels_name}/wchan").read_text()
        except OSError:
            return False

    def processor_time(self) -> float:
        """The seconds for which the thread that trains has been on a processor."""
        return time.clock_gettime(self._clock)


@contextmanager
def noted(here: Whereabouts) -> Iterator[Whereabouts]:
    """A context in which `here` is told of this thread's waits; costs a microsecond each."""
    originals = [getattr(owner, name) for owner, name, _ in _WAITS]
    for (owner, name, phase), original in zip(_WAITS, originals, strict=True):
        setattr(owner, name, _noting(here, phase, original))
    try:
        yield here
    finally:
        for (owner, name, _), original in zip(_WAITS, originals, strict=True):
            setattr(owner, name, original)


def _noting(here: Whereabouts, phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(*inputs: Any, **names: Any) -> Any:
        if threading.get_ident() != here.thread:
            return original(*inputs, **names)
        before, here.waiting = here.waiting, phase
        here.rounds += 1
        try:
            return original(*inputs, **names)
        finally:
            here.waiting = before
    return wait
