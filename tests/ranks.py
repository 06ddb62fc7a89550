"""Runs functions (as studies/proof/ranks.py does) and whole programs as ranks, from a forkserver.

Starting a rank takes milliseconds instead of the seconds that importing torch takes. No process
outlives the call that started it.
"""

import contextlib
import os
import re
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from studies.proof import ranks

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 120
ranks.preload("tests.preload")
run_ranks = partial(ranks.run_ranks, seconds=60, threads=1)


class _Ended(Popen):
    """Asked by one thread at a time how the process ended.

    The forkserver tells that once, and the start of any process asks after all others: a thread
    that reads second takes the end of the stream for exit code 255.
    """

    one_at_a_time = threading.RLock()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and flag != os.WNOHANG:
            wait([self.sentinel])
        with self.one_at_a_time:
            return super().poll(os.WNOHANG)


class RankProcess(ForkServerProcess):
    """A process of the forkserver that any thread may start and wait for."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:  # noqa: N802 (multiprocessing's name)
        return _Ended(process_obj)


class Outcome(NamedTuple):
    """How a program ended, and what it printed on both streams."""

    code: int | None
    output: str


def error_lines(output: str) -> list[str]:
    """The errors that a rank printed, without the rank's mark; there must be no traceback."""
    assert "Traceback" not in output, output
    found = (re.fullmatch(r"(?:\[rank \d+ \S+\] )?(error: .*)", line)
             for line in output.splitlines())
    return [match.group(1) for match in found if match]


def free_port() -> int:
    """A TCP port on loopback that is free right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Starts the processes, and leaves none of them, nor of theirs, behind: fails if there were."""
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join(TIME_LIMIT)
    finally:
        for process in processes:
            process.kill()
            process.join()
        left = _left_behind({process.pid for process in processes})
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, f"{len(left)} processes outlived the ranks that started them"


def _left_behind(sessions: set[int | None], seconds: float = 3) -> list[int]:
    """The processes of these sessions (a program's is its own pid) that are left after a while."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                   if _session(pid) in sessions]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


class Program(NamedTuple):
    """A part's main in a process of its own, and the file that takes its output."""

    process: BaseProcess
    path: Path

    def output(self) -> str:
        return self.path.read_text(errors="replace")

    def outcome(self) -> Outcome:
        """Waits for the end, within the time limit."""
        self.process.join(TIME_LIMIT)
        return Outcome(self.process.exitcode, self.output())


def program(part: str, flags: Sequence[str], folder: Path, name: str,
            environment: Mapping[str, str] | None = None, root: Path = ROOT,
            before: Callable[[], None] | None = None) -> Program:
    """`python3 part/main.py flags`, ready to start; its output goes to `folder/name.out`.

    `part` may also be a program's file, as "scripts/preflight.py". `before` is called in the new
    process first, to plant a fault.
    """
    path = folder / f"{name}.out"
    main = root / part if part.endswith(".py") else root / part / "main.py"
    process = RankProcess(target=_main, args=(str(main), list(flags), str(path),
                                                  dict(environment or {}), before))
    return Program(process, path)


def run_programs(programs: Sequence[Program]) -> list[Outcome]:
    """Starts all programs, waits for them, and says how each ended."""
    with started([each.process for each in programs]):
        pass
    return [each.outcome() for each in programs]


def cluster(part: str, world_size: int, flags: Sequence[str], folder: Path,
            by_rank: Mapping[int, Sequence[str]] | None = None,
            before: Mapping[int, Callable[[], None]] | None = None) -> list[Program]:
    """The assignment's command for each rank, on loopback.

    `by_rank` adds or overrides flags of a rank, `before` plants a fault in it.
    """
    port = str(free_port())
    return [program(part, ["-M", "127.0.0.1", "-N", str(world_size), "-R", str(rank),
                           "--master-port", port, *flags, *(by_rank or {}).get(rank, ())],
                    folder, f"rank{rank}", before=(before or {}).get(rank))
            for rank in range(world_size)]


def _main(path: str, flags: list[str], output: str, environment: dict[str, str],
          before: Callable[[], None] | None) -> None:
    os.setsid()  # its session identifies what this process starts
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    for variable in ("RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        os.environ.pop(variable, None)
    os.environ.update(environment)
    sys.argv = [path, *flags]
    if before is not None:
        before()
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
