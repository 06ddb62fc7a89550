"""The processes of a strategy under test: started, asked, and ended when they fail or hang."""

import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.util import get_temp_dir
from select import select
from types import MappingProxyType

from common.settings.user_code import Place
from studies.grading.channel import Channel, Malformed, frame, wait
from studies.grading.isolation import is_possible
from studies.grading.keeper import MOST_PROCESSES, keep
from studies.grading.limits import CPU_SECONDS
from studies.grading.messages import (
    Message,
    Order,
    Raised,
    Ready,
    Seen,
    Settled,
    Started,
    most_bytes,
    read,
)
from studies.grading.scenarios import Scenario
from studies.grading.socket_bytes import SocketBytes, Traffic
from studies.proof.ranks import CONTEXT
from studies.stacks import Waiting, waiting_in

START_SECONDS = 20.0
PATIENCE_SECONDS = 8.0
OTHERS_SECONDS = 0.3
END_SECONDS = 5.0
ENDINGS = ("forged", "processes", "time-limit", "ends-process")  # that no other rank can cause


class Trouble(Exception):
    """A rank has not answered: `kind` is "hangs", "lost", "time-limit", or a diagnosis."""

    def __init__(self, kind: str, rank: int, sentence: str = "", trace: str = "",
                 waiting: Sequence[Waiting] = (),
                 answers: Mapping[int, Message] = MappingProxyType({})) -> None:
        super().__init__(sentence)
        self.kind, self.rank, self.sentence, self.trace = kind, rank, sentence, trace
        self.waiting, self.answers = waiting, answers


class Ranks:
    """A set of processes; used as a context manager, which leaves none of them behind.

    `secret` is what the scenarios' data follow from; no rank is told it.
    """

    def __init__(self, world: int, place: Place, scenarios: Sequence[Scenario],
                 secret: int) -> None:
        self._place, self._scenarios, self._secret = place, scenarios, secret
        self._folder = tempfile.TemporaryDirectory()
        self._control, control = socket.socketpair()
        pairs = [(socket.socketpair(), socket.socketpair()) for _ in range(world)]
        self._channels = {rank: Channel(grader[0]) for rank, (grader, _) in enumerate(pairs)}
        self._stacks = [stacks[0] for _, stacks in pairs]
        self._theirs = [control, *(end for grader, stacks in pairs for end in (grader[1],
                                                                                stacks[1]))]
        self._keeper = CONTEXT.Process(target=keep, args=(
            can_isolate(), self._folder.name, [get_temp_dir()], place, scenarios, control,
            [(grader[1], stacks[1]) for grader, stacks in pairs]))
        self._bytes = list[SocketBytes]()
        self._control_told = b""

    def __enter__(self) -> "Ranks":
        self._keeper.start()
        for theirs in self._theirs:
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._keeper.join(END_SECONDS)
        self._keeper.kill()
        self._keeper.join()
        for channel in self._channels.values():
            channel.close()
        for counted in self._bytes:
            counted.close()
        for end in self._stacks:
            end.close()
        self._folder.cleanup()

    def tolerance(self) -> float:
        """The tolerance that the strategy declares. Raises Trouble if it cannot be used."""
        try:
            started = self._judged(self._answers(START_SECONDS, Started))
            self._bytes = [SocketBytes(each.process) for each in started
                           if isinstance(each, Started)]
            ready = self._judged(self._answers(START_SECONDS, Ready))
        except Trouble as trouble:
            text = trouble.sentence or f"{self._place.file} is not loaded in {START_SECONDS:.0f} s"
            raise Trouble("unusable", trouble.rank, text, trouble.trace) from trouble
        return max(each.tolerance for each in ready if isinstance(each, Ready))

    def ask(self, order: Order) -> list[Message]:
        """Returns every rank's answer. Raises Trouble, soon after the first exception."""
        kind = Settled if order.is_settling else Seen
        return self._judged(self._send(order) or self._answers(PATIENCE_SECONDS, kind, order))

    def ask_without(self, lost: int, order: Order) -> None:
        """Asks while rank `lost` dies: raises a Trouble whose `answers` are the other ranks'.

        Its kind is "lost" where every other rank has raised an exception or gone on.
        """
        survivors = [rank for rank in self._everyone if rank != lost]
        answers = self._send(order) or self._answers(
            PATIENCE_SECONDS, Seen, order, others_seconds=PATIENCE_SECONDS)
        answers.pop(lost, None)
        _raise_first({rank: each for rank, each in answers.items()
                      if isinstance(each, Raised) and each.kind in ENDINGS}, answers)
        if len(answers) < len(survivors):
            raise self._hang([rank for rank in survivors if rank not in answers], answers)
        raise Trouble("lost", lost, answers=answers)

    def traffic(self) -> list[Traffic]:
        """Bytes that each rank has sent and received so far."""
        return [each.total() for each in self._bytes]

    @property
    def _everyone(self) -> Sequence[int]:
        return range(len(self._channels))

    def _send(self, order: Order) -> dict[int, Message]:
        """Begins to send an order; returns the failures of ranks that sent something unasked."""
        forged = dict[int, Message]()
        for rank in self._everyone:
            try:
                self._channels[rank].put(self._order(order, rank))
            except Malformed as error:
                forged[rank] = _forged(error)
        return forged

    def _order(self, order: Order, rank: int) -> bytes:
        """The order for a rank, with its own data and no other's."""
        scenario, place = self._scenarios[order.scenario], (len(self._channels), rank, order.step)
        if order.is_settling:
            return frame({"order": order, "weight": 0.0})
        numbers = scenario.shard(*place, self._secret)
        return frame({"order": order, "weight": scenario.weight(*place),
                      "shape": [*numbers.shape]}, numbers.numpy().tobytes())

    def _answers(self, seconds: float, kind: type, order: Order | None = None,
                 others_seconds: float = OTHERS_SECONDS) -> dict[int, Message]:
        """The answers that come within `seconds`, or `others_seconds` after the first exception."""
        deadline, answers = time.monotonic() + seconds, dict[int, Message]()
        while missing := {rank: each for rank, each in self._channels.items()
                          if rank not in answers}:
            for rank in (ready := wait(missing, deadline)):
                answer = self._received(rank, kind, order)
                if answer is not None:
                    answers[rank] = answer
                if isinstance(answer, Raised):
                    deadline = min(deadline, time.monotonic() + others_seconds)
            if not ready or time.monotonic() > deadline:
                break
        return answers

    def _received(self, rank: int, kind: type, order: Order | None) -> Message | None:
        scenario = self._scenarios[order.scenario] if order else None
        try:
            parts = self._channels[rank].go_on(most_bytes(scenario) if scenario else 0)
            return parts and read(*parts, kind, order, scenario)
        except Malformed as error:
            return _forged(error)
        except EOFError:
            return self._ended(rank)

    def _judged(self, answers: dict[int, Message]) -> list[Message]:
        """All ranks' answers. Raises Trouble for the first exception, or for a hang."""
        _raise_first({rank: each for rank, each in answers.items() if isinstance(each, Raised)},
                     answers)
        if missing := [rank for rank in self._everyone if rank not in answers]:
            raise self._hang(missing, answers)
        return [answers[rank] for rank in self._everyone]

    def _hang(self, missing: Sequence[int], answers: dict[int, Message]) -> Trouble:
        waiting = [waiting_in(self._bytes[rank].process, self._stacks[rank], rank, self._place.file)
                   for rank in missing] if self._bytes else []
        return Trouble("hangs", missing[0], waiting=waiting, answers=answers)

    def _ended(self, rank: int) -> Raised:
        """Describes the end of a rank, from its keeper's report."""
        end = self._told(rank)
        if end == str(-signal.SIGXCPU):
            return _raised(f"rank {rank} has computed for {CPU_SECONDS} s", "time-limit")
        if end == "processes":
            return _raised(f"it has started more than {MOST_PROCESSES} processes", "processes")
        if end.startswith("-"):
            return _raised(f"its process was ended by {signal.Signals(-int(end)).name}", "raises")
        return _raised(f"its process has ended with exit code {end or 'unknown'}, and no "
                       "exception: nothing in average() may end it", "ends-process")

    def _told(self, rank: int) -> str:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            for words in map(str.split, self._control_told.decode().splitlines()):
                if words[0] == "processes":
                    return words[0]
                if words[:2] == ["rank", str(rank)]:
                    return words[2]
            if select([self._control], [], [], 0.05)[0]:
                self._control_told += self._control.recv(4096)
        return ""


@cache
def can_isolate() -> bool:
    return is_possible()


def _raise_first(raised: Mapping[int, Raised], answers: Mapping[int, Message]) -> None:
    if raised:
        rank = min(raised, key=lambda each: (
            raised[each].kind not in ENDINGS, raised[each].is_broken, raised[each].when))
        raise Trouble(raised[rank].kind, rank, raised[rank].sentence, raised[rank].trace,
                      answers=answers)


def _raised(sentence: str, kind: str) -> Raised:
    return Raised(sentence, "", False, time.monotonic(), kind)


def _forged(error: Malformed) -> Raised:
    return _raised(str(error), "forged")
