"""Runs one function as N local ranks over gloo on loopback, from a forkserver that has torch.

Starting a rank so takes a fraction of a second instead of the seconds that importing torch takes.

    results = run_ranks(4, function, argument)
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from common.core.failures import Failure, PeerLost, Verdict

TIMEOUT = timedelta(minutes=5)
GRACE_SECONDS = 10
_CONTEXT = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Names what every rank of this program finds imported. Call it before the first run."""
    _CONTEXT.set_forkserver_preload(list(modules))


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Calls `function(*args)` on every rank of a new process group; the results in rank order.

    `function` must be importable, arguments and results plain values. A rank gets its part of the
    cores as threads. A Failure of a rank is raised here, as a Verdict; any other error leaves its
    traceback on standard error and raises PeerLost. No rank outlives the call.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [_CONTEXT.Process(target=_rank, args=(rank, world_size, folder, sender, function,
                                                      args))
                 for rank, (_, sender) in enumerate(pipes)]
        try:
            for process, (_, sender) in zip(ranks, pipes, strict=True):
                process.start()
                sender.close()
            results = _results([receiver for receiver, _ in pipes])
            for process in ranks:
                process.join(GRACE_SECONDS)
            return results
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _results(receivers: Sequence[Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        lost = []
        for ready in wait([each for rank, each in enumerate(receivers) if rank not in results]):
            rank = receivers.index(ready)  # type: ignore[arg-type]
            try:
                results[rank], failure = receivers[rank].recv()
            except EOFError:
                lost.append(rank)
                continue
            if failure is not None:
                raise Verdict(*failure)
        if lost:  # judged last: a rank that failed took its neighbours with it
            raise PeerLost(f"rank {lost[0]} of {len(receivers)} ended without a result")
    return [results[rank] for rank in range(len(receivers))]


def _rank(rank: int, world_size: int, folder: str, sender: Connection,
          function: Callable[..., Any], args: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller is told too, and ends its ranks
    tempfile.tempdir = folder  # so that the caller clears away what a killed rank leaves
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world_size),
                            rank=rank, world_size=world_size, timeout=TIMEOUT)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # the log lines of a run
            result = function(*args)
        dist.barrier()
        dist.destroy_process_group()
        sender.send((result, None))
    except Failure as failure:
        sender.send((None, (str(failure), failure.exit_code)))
