"""One rank of a strategy under test, in a process of its own: obeys orders, tells what it sees.

What it tells is not believed: the user's code may do anything to this process. See messages.py.
"""

import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from common.cluster.board import is_broken_collective
from common.core.failures import Failure, UsageError, first_line
from common.settings.user_code import Place, own_errors, own_frames
from PartTwo.own_strategy import own_strategy
from studies.grading.channel import frame, receive
from studies.grading.descendants import own_number
from studies.grading.limits import limit_this_process
from studies.grading.messages import Message, Order, Raised, Ready, Settled, Started, as_frame
from studies.grading.scenarios import Scenario
from studies.grading.training import OtherShape, Training
from studies.grading.under_way import Sums

MOST_TOLERANCE = 0.1
MOST_TEXT = 8000
FOREVER = timedelta(hours=1)  # the grader ends a hang, and sees where it is


class Tail(io.TextIOBase):
    """A stream that keeps the end of what is written to it, in `text`."""

    text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-2 * MOST_TEXT:]
        return len(text)


def serve(rank: int, world: int, folder: str, place: Place, scenarios: Sequence[Scenario],
          store: socket.socket, grader: socket.socket, stacks: socket.socket) -> None:
    """Forms the group, makes the strategy, and then obeys until the grader hangs up.

    `store` listens for the ranks; what `faulthandler` sees is written to `stacks`.
    """
    _send(grader, Started(own_number()))
    warnings = Tail()
    try:
        limit_this_process(folder)
        _be_silent()
        faulthandler.register(signal.SIGUSR1, stacks.fileno(), all_threads=False)
        with contextlib.redirect_stderr(warnings), own_errors(unless=_never):
            _join(rank, world, store)
            _serve(rank, world, place, scenarios, grader)
    except EOFError:
        os._exit(0)
    except BaseException as error:  # also what ends a process without a word
        _send(grader, _raised(error, warnings.text))
    os._exit(1)  # so that the other ranks' connections break now


def _send(grader: socket.socket, message: Message, order: Order | None = None) -> None:
    grader.sendall(frame(*as_frame(message, order)))


def _never(error: BaseException) -> bool:
    """Returns False: a connection that breaks in the user's line is reported with that line."""
    return False


def _be_silent() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdin = open(0, closefd=False)  # multiprocessing has put another file there, now closed


def _raised(error: BaseException, trace: str) -> Raised:
    root = error.__cause__ if isinstance(error, Failure) and error.__cause__ else error
    if not isinstance(root, Exception):
        return Raised(_end_of(error, root), "", False, time.monotonic(), "ends-process")
    sentence = str(error) if isinstance(error, Failure) else (
        f"{type(error).__name__}: {first_line(error)}")
    return Raised(sentence.removeprefix("--sync ")[:MOST_TEXT],
                  trace[max(0, trace.rfind("Traceback")):][:MOST_TEXT],
                  is_broken_collective(root), time.monotonic(),
                  "mixed-shapes" if isinstance(error, OtherShape) else "raises")


def _end_of(error: BaseException, root: BaseException) -> str:
    """The reason why the process ended, with the user's line if it is known."""
    lines = own_frames(root)
    where = f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: " if lines else ""
    return f"{where}{type(root).__name__}: {first_line(root)}"[:MOST_TEXT]


def _join(rank: int, world: int, store: socket.socket) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    host, port = store.getsockname()
    leads = rank == 0
    kept = dist.TCPStore(host, port, world, leads, timeout=FOREVER,
                         master_listen_fd=store.detach() if leads else None)
    store.close()
    dist.init_process_group("gloo", store=kept, rank=rank, world_size=world, timeout=FOREVER)


def _serve(rank: int, world: int, place: Place, scenarios: Sequence[Scenario],
           grader: socket.socket) -> None:
    sums = Sums()
    sums.watch()  # before the user's file can import a function
    _send(grader, Ready(_tolerance(place)))
    training = None
    while True:
        header, body = receive(grader)
        order, weight = Order(*header["order"]), header["weight"]
        time.sleep(max(0.0, order.start - time.monotonic()))
        if order.is_settling:
            assert training is not None
            _send(grader, Settled(training.gradients()), order)
            continue
        if order.step == 0:
            training = Training(scenarios[order.scenario], rank, world, place, sums)
        assert training is not None
        numbers = torch.from_numpy(np.frombuffer(body).reshape(header["shape"]).copy())
        _send(grader, training.step(order.step, numbers, weight), order)


def _tolerance(place: Place) -> float:
    """The strategy's declared tolerance. Raises UsageError if it is not a number from 0 to 0.1."""
    own_strategy(place)  # refuses now what is not a strategy
    declared = getattr(place.load(), "tolerance", 0)
    if not isinstance(declared, int | float) or not 0 <= declared <= MOST_TOLERANCE:
        raise UsageError(f"{place} declares tolerance = {declared!r}: it must be a number from 0 "
                         f"to {MOST_TOLERANCE}")
    return float(declared)
