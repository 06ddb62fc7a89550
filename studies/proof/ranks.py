"""Runs one function as N local ranks over gloo on loopback, from a forkserver that has torch.

Starting a rank so takes a fraction of a second instead of the seconds that importing torch takes.

    results = run_ranks(4, function, argument)
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from common.core.failures import Failure, PeerLost, Verdict
from common.settings.user_code import Place
from studies.proof.left_waiting import LOOK_SECONDS, Watch

COLLECTIVE_SECONDS = 300.0
GRACE_SECONDS = 10
CONTEXT = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Names what every rank of this program finds imported. Call it before the first run."""
    CONTEXT.set_forkserver_preload(list(modules))


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any,
              seconds: float | None = None, threads: int | None = None,
              place: Place | None = None) -> list[Any]:
    """Calls `function(*args)` on every rank of a new process group; the results in rank order.

    `function` must be importable; arguments and results are pickled, tensors by value. A rank gets
    `threads` threads, or its part of the cores; all must end within `seconds`, if given. A Failure
    of a rank is raised here, as a Verdict; for any other error PeerLost, with the rank's traceback
    as its cause. So is a Verdict where several ranks run the user's strategy at `place`, if given,
    and wait for each other for ever. No rank outlives the call.
    """
    call = pickle.dumps((function, args))
    threads = threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    deadline = time.monotonic() + (seconds or float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        stacks = [socket.socketpair() for _ in range(world_size)]
        ranks = [CONTEXT.Process(target=_rank,
                                 args=(rank, world_size, folder, threads, call, sender,
                                       stacks[rank][1]))
                 for rank, (_, sender) in enumerate(pipes)]
        try:
            for process, (_, sender) in zip(ranks, pipes, strict=True):
                process.start()
                sender.close()
            watch = Watch(place, [process.pid or 0 for process in ranks],
                          [ours for ours, _ in stacks]) if place and world_size > 1 else None
            results = _results([receiver for receiver, _ in pipes], deadline, watch)
            for process in ranks:
                process.join(GRACE_SECONDS)
            return results
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
            for end in chain(*stacks):
                end.close()


def _results(receivers: Sequence[Connection], deadline: float,
             watch: Watch | None = None) -> list[Any]:
    results: dict[int, Any] = {}
    while missing := [rank for rank in range(len(receivers)) if rank not in results]:
        left = deadline - time.monotonic()
        ready = wait([receivers[rank] for rank in missing],
                     max(0.0, min(left, LOOK_SECONDS)))
        if not ready and left <= 0:
            raise PeerLost(f"no result of ranks {missing} in time")
        if not ready and watch:
            watch.look(missing)
        failures = []
        for rank in (rank for rank in missing if receivers[rank] in ready):
            results[rank], failure = _answer(receivers[rank], rank)
            failures += [failure] if failure else []
        if failures:  # the first of them: a rank that fails takes its neighbours with it
            raise min(failures, key=lambda each: each[0])[1]
    return [results[rank] for rank in range(len(receivers))]


def _answer(receiver: Connection, rank: int) -> tuple[Any, tuple[float, Failure] | None]:
    """A rank's result; or when it failed, and what to raise."""
    try:
        result, failed = pickle.loads(receiver.recv_bytes())
    except EOFError:
        return None, (0.0, PeerLost(f"rank {rank} ended without a result"))
    if failed is None:
        return result, None
    when, sentence, code, trace = failed
    failure = Verdict(sentence, code) if code else PeerLost(f"rank {rank} failed: {sentence}")
    failure.__cause__ = RuntimeError(trace)
    return None, (when, failure)


def _rank(rank: int, world_size: int, folder: str, threads: int, call: bytes,
          sender: Connection, stacks: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller gets it too, and ends its ranks
    tempfile.tempdir = folder  # so that the caller deletes what a killed rank leaves
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    faulthandler.register(signal.SIGUSR1, stacks.fileno(), all_threads=False)
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world_size), rank=rank,
                            world_size=world_size, timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    try:
        function, args = pickle.loads(call)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # the log lines of a run
            result = function(*args)
        dist.barrier()
        dist.destroy_process_group()
        answer: tuple[Any, Any] = result, None
    except Exception as error:
        code = error.exit_code if isinstance(error, Failure) else None
        answer = None, (time.monotonic(), str(error), code, traceback.format_exc())
    sender.send_bytes(pickle.dumps(answer))
