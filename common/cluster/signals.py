"""SIGINT, SIGTERM and SIGUSR1: all ranks stop after one and the same step, save, and leave.

Python runs its signal handlers on the main thread, and not while that is blocked in a collective.
So a thread of its own reads the pipe that the interpreter writes each signal's number to. Here is
what one process knows; common/cluster/agreement.py finds, through the store, the step that all can
reach.

    kill -TERM PID        # exit code 143; SIGINT 130; SIGUSR1, a scheduler's preemption, 75
"""

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import NoReturn

from common.cluster.advice import advice
from common.core.events import append_event
from common.core.progress import Progress, process_progress

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
GRACE_SECONDS = 20.0
SAME_SIGNAL_SECONDS = 0.5
CLEARED_LINE = "\r\x1b[K"


class Stop:
    """Whether, and after which step, this process must stop; and what it has to say then.

    A boundary is an instant between two steps, or after an epoch, where a run can be saved. All
    ranks pass the same boundaries in the same order, so their count says where a rank is.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self.mark = ""
        self.signal: signal.Signals | None = None
        self.in_group = False
        self.is_over = False
        self.wake = threading.Event()
        self._change = threading.Condition()
        self._passed = 0
        self._unsaved = False
        self._passed_when_frozen: int | None = None
        self._target: int | None = None
        self._done = False

    def begin_step(self) -> None:
        """From now on there is something to save. Main thread only, as the next three."""
        with self._change:
            self._unsaved = True

    def saved(self) -> None:
        """A checkpoint was written or at least tried; call it on every rank, at the same step."""
        with self._change:
            self._unsaved = False

    def boundary(self) -> bool:
        """Counts a boundary; true where all ranks stop. May wait, a second or so, for the others.

        The caller saves if `needs_saving`, and then calls `end`.
        """
        with self._change:
            self._passed += 1
            self._change.wait_for(lambda: self._passed_when_frozen is None
                                  or self._target is not None)
            if self._target is not None and self._passed > self._target:
                self._change.wait()  # the others have stopped: the watch ends this process too
            return self._target == self._passed

    @property
    def needs_saving(self) -> bool:
        return self._unsaved

    def end(self) -> NoReturn:
        """Leaves, now that all is saved; in a group the watch ends all ranks when all are here."""
        with self._change:
            self._done = True
            while self.in_group:
                self._change.wait()
        sentence, code = self.why()
        self.tell(f"{sentence} {self.progress.place()}", code)
        sys.exit(code)

    def why(self) -> tuple[str, int]:
        """What to say about the signal, and the exit code that goes with it."""
        assert self.signal is not None
        return f"stopped by {self.signal.name}", EXIT_CODES[self.signal]

    def freeze(self) -> int:
        """From now on at most one more boundary is passed before `settle`.

        Returns the first boundary at which this process has nothing to lose. Watch thread only, as
        the next two; or, for a process alone, the thread that reads signals.
        """
        with self._change:
            self._passed_when_frozen = self._passed
            return self._passed + int(self._unsaved)

    def settle(self, target: int) -> None:
        """All ranks stop at the boundary `target`, which must not be before anyone's `freeze`."""
        with self._change:
            self._target = target
            self._change.notify_all()

    def is_done(self) -> bool:
        """Whether this process has reached the boundary, and saved what had to be saved there."""
        frozen, target = self._passed_when_frozen, self._target
        return self._done or (frozen is not None and target is not None and frozen >= target)

    def ask(self, number: int) -> None:
        """A signal has come. A group agrees on what to do; alone, the next boundary will do.

        When all is done and saved on every rank, it comes too late to change anything.
        """
        self.signal = signal.Signals(number)
        self.wake.set()
        if self.in_group or self.is_over:
            return
        target = self.freeze()
        sentence, code = self.why()
        self.settle(target)
        if self.is_done():
            self.leave(f"{sentence} {self.progress.place()}, with nothing to save", code)
        time.sleep(GRACE_SECONDS)
        self.leave(f"{sentence}, and {GRACE_SECONDS:.0f} s were too short to save", code)

    def leave(self, sentence: str, code: int) -> NoReturn:
        """Ends this process and its workers at once: the main thread may be blocked for good."""
        self.tell(sentence, code)
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        os._exit(code)

    def tell(self, sentence: str, code: int) -> None:
        """Prints a failure's one line: who says it, what happened, and how to go on if one can.

        On a terminal it takes the place of a progress bar. The open run's log gets the sentence
        too.
        """
        how = advice(code, self.progress.saved, sys.argv, os.environ)
        # Not through tqdm, whose lock the main thread may hold for good.
        before = CLEARED_LINE if sys.stderr.isatty() else ""
        print(f"{before}{self.mark}error: {sentence}{how}", file=sys.stderr, flush=True)
        if self.progress.log is not None:
            append_event(self.progress.log, "failed", why=sentence, exit_code=code)


@functools.cache
def process_stop() -> Stop:
    """The one Stop of this process: signals belong to processes."""
    return Stop(process_progress())


def listen_for_signals(stop: Stop) -> None:
    """Hands the three signals to `stop` from now on. Main thread only; once per process.

    A second signal ends the process at once, unless it comes within half a second of the first:
    launchers pass on what the terminal has sent to everyone already.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in EXIT_CODES:
        signal.signal(number, _do_nothing)
    # Blocked meanwhile: a child that has not yet forgotten would write to this process's pipe.
    os.register_at_fork(
        before=functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, EXIT_CODES),
        after_in_parent=functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, EXIT_CODES),
        after_in_child=_forget_signals)
    threading.Thread(target=_read, args=(reader, stop), name="signals", daemon=True).start()


def _do_nothing(number: int, frame: object) -> None:
    """Python writes to the wake-up pipe only for signals that have a handler."""


def _forget_signals() -> None:
    """In a forked worker: a signal to it is none to the run, which ends its workers itself.

    Terminals and schedulers signal every process of a job. A worker that obeyed would be missing
    for the step that is to be finished and saved.
    """
    signal.set_wakeup_fd(-1)  # the pipe is the parent's
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it stays blocked, for _obey_parent to take
    threading.Thread(target=_obey_parent, args=(os.getppid(),), daemon=True).start()


def _obey_parent(parent: int) -> None:
    """Ends this worker at a SIGTERM that its own parent sent, as torch and multiprocessing do."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def _read(reader: int, stop: Stop) -> None:
    first: float | None = None
    while True:
        for number in os.read(reader, 64):
            if number not in EXIT_CODES:
                continue
            if first is None:
                first = time.monotonic()
                threading.Thread(target=stop.ask, args=(number,), name="stop", daemon=True).start()
            elif time.monotonic() - first > SAME_SIGNAL_SECONDS:
                stop.leave("a second signal: leaving at once", EXIT_CODES[signal.Signals(number)])
