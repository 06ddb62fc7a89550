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
from torch import Tensor, nn

from common.cluster.board import is_broken_collective
from common.core.failures import Failure, UsageError, first_line
from common.core.user_code import Place, own_errors
from PartTwo.own_strategy import OwnStrategy, own_strategy
from PartTwo.strategies import create_strategy
from studies.grading.limits import limit_this_process
from studies.grading.messages import Order, Raised, Ready, Seen, Settled
from studies.grading.scenarios import LATE_SECONDS, Scenario, backward
from studies.grading.socket_bytes import SentBytes

RATE = 0.1
MOST_TOLERANCE = 0.1
FOREVER = timedelta(hours=1)  # the grader ends a hang, and sees where it is


def serve(rank: int, world: int, folder: str, place: Place, scenarios: Sequence[Scenario],
          pipe: Connection) -> None:
    """Forms the group, makes the strategy, and then obeys until the pipe is closed."""
    limit_this_process()
    _be_silent()
    stacks = open(f"{folder}/stack{rank}", "w")  # noqa: SIM115 (open as long as the process)
    faulthandler.register(signal.SIGUSR1, stacks)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), own_errors(is_broken_collective):
            _join(rank, world, folder)
            _serve(rank, world, place, scenarios, pipe)
    except EOFError:
        os._exit(0)
    except Exception as error:
        pipe.send(_raised(error, told.getvalue()))
    os._exit(1)  # so that the other ranks' connections break now


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


class OtherShape(UsageError):
    """A gradient has another shape than its parameter."""


def _require_shapes(model: nn.Module) -> None:
    for name, each in model.named_parameters():
        if each.grad is not None and each.grad.shape != each.shape:
            raise OtherShape(f"the gradient of {name!r} has the shape {tuple(each.grad.shape)} "
                             f"after average(), and had {tuple(each.shape)}")


class Training:
    """A scenario on this rank, with a new strategy and a new model."""

    def __init__(self, scenario: Scenario, rank: int, world: int, place: Place) -> None:
        self._scenario, self._rank, self._world = scenario, rank, world
        self._model = scenario.model(rank)
        self._weights = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(self._weights, lr=RATE)
        self._sent, self._gradients = SentBytes(), list[Tensor | None]()
        strategy = own_strategy(place)
        self._average = (strategy.call if isinstance(strategy, OwnStrategy) else strategy.average)
        strategy.prepare(self._model, self._optimizer)

    def step(self, step: int) -> Seen:
        """Forward, backward, average, update: as common/training.py does."""
        self._die_if_planned(step)
        self._before = self._sent.total()
        inputs, weight = self._scenario.shard(self._world, self._rank, step)
        self._inputs, self._weight = inputs, weight
        if self._scenario.is_one_late and self._rank == step % self._world:
            time.sleep(LATE_SECONDS)
        self._optimizer.zero_grad()
        self._start_together()
        start = time.monotonic()
        backward(self._model, inputs, weight)
        seconds = time.monotonic() - start
        passed = [each.grad for each in self._weights if each.grad is not None]
        given, buffers = list(passed), _copies(self._model.buffers())
        weights = [_arrays(self._weights)]
        start = time.monotonic()
        returned = self._average(given)
        seconds += time.monotonic() - start
        _require_shapes(self._model)
        self._gradients = [_copy(each.grad) for each in self._weights]
        weights.append(_arrays(self._weights))
        changed = not all(map(torch.equal, buffers, self._model.buffers()))
        self._optimizer.step()
        weights.append(_arrays(self._weights))
        replaced = [*map(id, given)] != [*map(id, passed)]
        return Seen([None if each is None else each.numpy() for each in self._gradients],
                    _described(returned), replaced, (weights[0], weights[1], weights[2]), changed,
                    seconds)

    def _die_if_planned(self, step: int) -> None:
        if self._scenario.loses_a_peer and step and self._rank == self._world - 1:
            os._exit(0)

    def _start_together(self) -> None:
        """Otherwise waiting for a rank that starts later would count as the strategy's time."""
        if self._scenario.is_timed:
            dist.barrier()

    def settle(self, ours) -> Settled:
        """Looks again at the step, and times our all-reduce on the same gradients."""
        sent = self._sent.total() - self._before
        late = [place for place, (seen, weight)
                in enumerate(zip(self._gradients, self._weights, strict=True))
                if seen is not None and not _same(seen, weight.grad)]
        return Settled(late, sent, self._seconds_of(ours) if self._scenario.is_timed else 0.0)

    def _seconds_of(self, ours) -> float:
        model = self._scenario.model(self._rank)
        self._start_together()
        start = time.monotonic()
        backward(model, self._inputs, self._weight)
        ours.average([each.grad for each in model.parameters() if each.grad is not None])
        return time.monotonic() - start


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _copies(tensors) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _arrays(tensors) -> list:
    return [each.numpy() for each in _copies(tensors)]


def _same(seen: Tensor, now: Tensor | None) -> bool:
    return now is not None and torch.equal(seen.nan_to_num(), now.nan_to_num())


def _described(returned: object) -> str:
    if returned is None:
        return ""
    return "a list" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
