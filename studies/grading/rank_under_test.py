"""One rank of a strategy under test, in a process of its own: obeys orders, tells what it sees."""

import contextlib
import faulthandler
import io
import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from common.cluster.board import is_broken_collective
from common.core.failures import Failure, UsageError, first_line
from common.core.user_code import Place, own_errors
from PartTwo.own_strategy import own_strategy
from PartTwo.strategies import create_strategy
from studies.grading.limits import limit_this_process
from studies.grading.messages import Order, Raised, Ready
from studies.grading.scenarios import Scenario
from studies.grading.training import OtherShape, Training

MOST_TOLERANCE = 0.1
FOREVER = timedelta(hours=1)  # the grader ends a hang, and sees where it is


def serve(rank: int, world: int, folder: str, place: Place, scenarios: Sequence[Scenario],
          pipe: Connection) -> None:
    """Forms the group, makes the strategy, and then obeys until the pipe is closed."""
    limit_this_process()
    _be_silent()
    stacks = open(f"{folder}/stack{rank}", "w")  # noqa: SIM115 (open as long as the process)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), own_errors(unless=_never):
            _join(rank, world, folder)
            _serve(rank, world, place, scenarios, pipe)
    except EOFError:
        os._exit(0)
    except Exception as error:
        pipe.send(_raised(error, told.getvalue()))
    os._exit(1)  # so that the other ranks' connections break now


def _never(error: BaseException) -> bool:
    """A connection that breaks in the user's line is reported with that line too."""
    return False


def _be_silent() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _raised(error: Exception, trace: str) -> Raised:
    root = error.__cause__ if isinstance(error, Failure) and error.__cause__ else error
    sentence = str(error) if isinstance(error, Failure) else (
        f"{type(error).__name__}: {first_line(error)}")
    return Raised(sentence.removeprefix("--sync "), trace[max(0, trace.rfind("Traceback")):],
                  is_broken_collective(root), time.monotonic(),
                  "mixed-shapes" if isinstance(error, OtherShape) else "raises")


def _join(rank: int, world: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world), rank=rank,
                            world_size=world, timeout=FOREVER)


def _serve(rank: int, world: int, place: Place, scenarios: Sequence[Scenario],
           pipe: Connection) -> None:
    pipe.send(Ready(_tolerance(place)))
    training, ours = None, create_strategy("all-reduce")
    while True:
        order: Order = pipe.recv()
        time.sleep(max(0.0, order.start - time.monotonic()))
        if order.is_settling:
            assert training is not None
            pipe.send(training.settle(ours))
            continue
        if order.step == 0:
            training = Training(scenarios[order.scenario], rank, world, place)
        assert training is not None
        pipe.send(training.step(order.step))


def _tolerance(place: Place) -> float:
    """What the strategy declares. Raises UsageError where that is no number from 0 to 0.1."""
    own_strategy(place)  # so that what is none is refused now
    declared = getattr(place.load(), "tolerance", 0)
    if not isinstance(declared, int | float) or not 0 <= declared <= MOST_TOLERANCE:
        raise UsageError(f"{place} declares tolerance = {declared!r}: it must be a number from 0 "
                         f"to {MOST_TOLERANCE}")
    return float(declared)
