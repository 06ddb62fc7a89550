"""SIGINT, SIGTERM, SIGHUP and SIGUSR1: all ranks stop after one and the same step, save, and exit.

Python runs its signal handlers on the main thread, and not while that is blocked in a collective.
So a thread of its own reads the pipe that the interpreter writes each signal's number to.

    kill -TERM PID        # exit code 143, as for SIGHUP, a lost terminal; SIGINT 130; SIGUSR1, a
                          # scheduler's preemption, 75
"""

import functools
import os
import signal
import threading
import time

from common.cluster import stopping
from common.cluster.ending import end_process
from common.cluster.stopping import EXIT_CODES, Stop
from common.core.progress import process_progress

SAME_SIGNAL_SECONDS = 0.5


def listen_for_signals(stop: Stop) -> None:
    """Hands these signals to `stop` from now on. Main thread only; once per process.

    A second signal ends the process at once, unless it comes within half a second of the first:
    launchers pass on what the terminal has sent to every process already. A SIGHUP that is ignored,
    as under nohup, stays so.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in EXIT_CODES:  # only signals that have a handler are written to the pipe
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    # Blocked meanwhile: a child that still has the handlers would write to this process's pipe.
    os.register_at_fork(
        before=functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, EXIT_CODES),
        after_in_parent=functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, EXIT_CODES),
        after_in_child=_forget_signals)
    threading.Thread(target=_read, args=(reader, stop), name="signals", daemon=True).start()


def request_stop(stop: Stop, number: int) -> None:
    """Stops the run for a signal: here at the next boundary; in a group the watch sees to it.

    A signal that comes when all ranks have done and saved everything changes nothing.
    """
    stop.signal = signal.Signals(number)
    stop.wake.set()
    if stop.in_group or stop.is_over:
        return
    stop.stop_at(stop.freeze())
    why, code = stop.reason()
    if stop.is_done():
        end_process(f"{why} {process_progress().place()}, with nothing to save", code)
    time.sleep(stopping.GRACE_SECONDS)
    end_process(f"{why}, and {stopping.GRACE_SECONDS:.0f} s were too short to save", code)


def _read(reader: int, stop: Stop) -> None:
    first: float | None = None
    while True:
        for number in os.read(reader, 64):
            if number not in EXIT_CODES:
                continue
            if first is None:
                first = time.monotonic()
                threading.Thread(target=request_stop, args=(stop, number), name="stop",
                                 daemon=True).start()
            elif time.monotonic() - first > SAME_SIGNAL_SECONDS:
                end_process("a second signal: ended at once", EXIT_CODES[signal.Signals(number)])


def _forget_signals() -> None:
    """Makes a forked worker ignore signals to the job: the run ends its workers itself.

    Terminals and schedulers signal every process of a job. A worker that ended would be missing for
    the step that is to be finished and saved.
    """
    signal.set_wakeup_fd(-1)  # the pipe is the parent's
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it stays blocked, for _obey_parent to take
    threading.Thread(target=_obey_parent, args=(os.getppid(),), daemon=True).start()


def _obey_parent(parent: int) -> None:
    """Ends this worker at a SIGTERM that its own parent sent, as torch and multiprocessing do."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)
