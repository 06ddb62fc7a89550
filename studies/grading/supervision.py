"""The processes of a strategy under test: started, asked, and ended when they fail or hang."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from types import MappingProxyType

from common.core.user_code import Place
from studies.grading.limits import LIFE_SECONDS
from studies.grading.messages import Message, Order, Raised, Ready
from studies.grading.rank_under_test import serve
from studies.grading.scenarios import Scenario
from studies.grading.stacks import Waiting, waiting_in
from studies.proof.ranks import CONTEXT

START_SECONDS = 20.0
PATIENCE_SECONDS = 8.0
OTHERS_SECONDS = 0.3


class Trouble(Exception):
    """A rank has not answered: `kind` is "hangs", "lost", "time-limit", or a diagnosis."""

    def __init__(self, kind: str, rank: int, sentence: str = "", trace: str = "",
                 waiting: Sequence[Waiting] = (),
                 answers: Mapping[int, Message] = MappingProxyType({})) -> None:
        super().__init__(sentence)
        self.kind, self.rank, self.sentence, self.trace = kind, rank, sentence, trace
        self.waiting, self.answers = waiting, answers


class Ranks:
    """A set of processes; used as a context manager, which leaves none of them behind."""

    def __init__(self, world: int, place: Place, scenarios: Sequence[Scenario]) -> None:
        self._place, self._folder = place, tempfile.TemporaryDirectory()
        ends = [CONTEXT.Pipe() for _ in range(world)]
        self._pipes = [ours for ours, _ in ends]
        self._processes = [
            CONTEXT.Process(target=serve, args=(rank, world, self._folder.name, place, scenarios,
                                                theirs))
            for rank, (_, theirs) in enumerate(ends)]
        self._theirs = [theirs for _, theirs in ends]

    def __enter__(self) -> "Ranks":
        for process, theirs in zip(self._processes, self._theirs, strict=True):
            process.start()
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
        self._folder.cleanup()

    def tolerance(self) -> float:
        """What the strategy declares. Raises Trouble where it cannot be used."""
        try:
            everyone = range(len(self._pipes))
            ready = self._judged(everyone, self._answers(everyone, START_SECONDS))
        except Trouble as trouble:
            told = trouble.sentence or f"{self._place.file} is not loaded in {START_SECONDS:.0f} s"
            raise Trouble("unusable", trouble.rank, told, trouble.trace) from trouble
        return max(each.tolerance for each in ready.values() if isinstance(each, Ready))

    def ask(self, order: Order) -> list[Message]:
        """Every rank's answer. Raises Trouble, soon after the first exception."""
        everyone = range(len(self._pipes))
        self._send(order)
        return [*self._judged(everyone, self._answers(everyone, PATIENCE_SECONDS)).values()]

    def ask_without(self, lost: int, order: Order) -> None:
        """The same when rank `lost` dies of it: raises a Trouble whose `answers` are the others'.

        Its kind is "lost" where every other rank has raised an exception or gone on.
        """
        survivors = [rank for rank in range(len(self._pipes)) if rank != lost]
        self._send(order)
        answers = self._answers(survivors, PATIENCE_SECONDS, others_seconds=PATIENCE_SECONDS)
        if len(answers) < len(survivors):
            raise self._hang([rank for rank in survivors if rank not in answers], answers)
        raise Trouble("lost", lost, answers=answers)

    def _send(self, order: Order) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(order)

    def _answers(self, asked: Sequence[int], seconds: float,
                 others_seconds: float = OTHERS_SECONDS) -> dict[int, Message]:
        """What comes within `seconds`, or `others_seconds` after the first exception."""
        deadline, answers = time.monotonic() + seconds, dict[int, Message]()
        while missing := [rank for rank in asked if rank not in answers]:
            ready = wait([self._pipes[rank] for rank in missing],
                         max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in (rank for rank in missing if self._pipes[rank] in ready):
                answers[rank] = self._receive(rank)
                if isinstance(answers[rank], Raised):
                    deadline = min(deadline, time.monotonic() + others_seconds)
        return answers

    def _judged(self, asked: Sequence[int], answers: dict[int, Message]) -> dict[int, Message]:
        """The answers by rank. Raises Trouble for the first exception, or for a hang."""
        raised = {rank: each for rank, each in answers.items() if isinstance(each, Raised)}
        if raised:
            rank = min(raised, key=lambda each: (raised[each].is_broken, raised[each].when))
            raise Trouble(raised[rank].kind, rank, raised[rank].sentence, raised[rank].trace,
                          answers=answers)
        missing = [rank for rank in asked if rank not in answers]
        if missing:
            raise self._hang(missing, answers)
        return {rank: answers[rank] for rank in asked}

    def _hang(self, missing: Sequence[int], answers: dict[int, Message]) -> Trouble:
        waiting = [waiting_in(self._processes[rank].pid, f"{self._folder.name}/stack{rank}",
                              rank, self._place.file) for rank in missing]
        return Trouble("hangs", missing[0], waiting=waiting, answers=answers)

    def _receive(self, rank: int) -> Message:
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join(1)
            if -(self._processes[rank].exitcode or 0) in (signal.SIGALRM, signal.SIGXCPU):
                return Raised(f"rank {rank} has worked for {LIFE_SECONDS} s", "", False,
                              time.monotonic(), "time-limit")
            return Raised(f"the process of rank {rank} has ended ({self._end_of(rank)})", "", False,
                          time.monotonic())

    def _end_of(self, rank: int) -> str:
        code = self._processes[rank].exitcode
        return signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
