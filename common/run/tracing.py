"""--profile: a Chrome trace of a few iterations on every rank, and all ranks' in one file.

Operators have the shapes of their inputs, and with EPOCH:N:stacks stand under Python's calls.

    python3 PartThree/main.py ... --profile 1:5       # then open traces/trace_all*.json.gz
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from common.arithmetic import torch_private
from common.cluster.node import Node
from common.core.collectives import gather_bytes_to_leader
from common.core.failures import UsageError
from common.core.files import replace_file
from common.core.progress import PHASES
from common.core.trace_file import is_communication, merge_traces, pack_trace, unpack_trace
from common.run.run_log import RunLog
from common.settings.settings import Settings
from common.settings.types import Profile

SHOWN_OPERATORS = 10


class Tracer:
    """Traces the iterations in `window` on this rank and writes them when the last has ended.

    `window` counts the run's iterations from 0 and is equal on all ranks, which must all call
    `after_step`: they hand their traces to each other. Files go to `folder`. An empty window costs
    nothing.
    """

    def __init__(self, window: range, folder: Path, suffix: str, node: Node, log: RunLog,
                 stacks: bool = False) -> None:
        self._window, self._folder, self._suffix = window, folder, suffix
        self._node, self._log, self._stacks = node, log, stacks
        self._profiler: profile | None = None

    def mark(self, name: str) -> AbstractContextManager:
        """Names what happens in the block, in the trace."""
        return record_function(name) if self._profiler else nullcontext()

    def before_step(self, step: int) -> None:
        """Starts the profiler when the window begins, or a resumed run begins within it."""
        if self._profiler is None and step in self._window:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it prints to standard error
            activities = [ProfilerActivity.CPU]
            if self._node.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=activities, record_shapes=True,
                                     with_stack=self._stacks,
                                     experimental_config=torch_private.trace_all_threads())
            self._profiler.start()

    def after_step(self, step: int) -> None:
        """Stops and writes when `step`, which comes next, lies beyond the window."""
        if self._profiler is None or step in self._window:
            return
        profiler, self._profiler = self._profiler, None
        self._node.progress.phase = "saving"  # which may take as long as a checkpoint
        profiler.stop()
        self._write(profiler)

    def _write(self, profiler: profile) -> None:
        rank = self._node.world.rank
        path = self._folder / f"trace_rank{rank}{self._suffix}.json.gz"
        operators = top_operators(profiler)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
            traces = gather_bytes_to_leader(path.read_bytes(), self._node.device)
            if self._node.world.is_leader:
                everybody = self._folder / f"trace_all{self._suffix}.json.gz"
                merged = merge_traces(dict(enumerate(map(unpack_trace, traces))))
                replace_file(everybody, pack_trace(merged))
        except OSError as error:
            raise UsageError(f"the trace {path} cannot be written: {error.strerror}") from error
        self._log.event("operators", rows=operators)
        if self._node.world.is_leader:
            count = len(self._window)
            self._log.note(f"traced {count} iteration{'s' * (count > 1)}: open {everybody} in "
                           "https://ui.perfetto.dev; scripts/compare.py lists the slowest "
                           "operators")


def create_tracer(settings: Settings, iterations_per_epoch: int, folder: Path, node: Node,
                  log: RunLog) -> Tracer:
    """Returns the tracer for --profile. Raises UsageError if the run lacks those iterations."""
    loader, asked = settings.loader, settings.profile or Profile(0)
    workers = f"_{loader.workers}workers" if loader.name == "workers" else ""
    return Tracer(window(settings, iterations_per_epoch), folder / "traces",
                  f"_epoch{asked.epoch}{workers}", node, log, asked.stacks)


def window(settings: Settings, iterations_per_epoch: int) -> range:
    """The iterations to trace, counted from the run's start; none without --profile.

    An epoch's first iteration, which starts workers and fills caches, is not traced where there
    are others. Raises UsageError when nothing is left.
    """
    if settings.profile is None or settings.dry_run:
        return range(0)
    epoch, count, _ = settings.profile
    begin = (epoch - 1) * iterations_per_epoch + int(iterations_per_epoch > 1)
    end = min(begin + count, min(epoch, settings.epochs) * iterations_per_epoch,
              settings.max_iterations or begin + count)
    if begin >= end:
        raise UsageError(f"--profile {epoch}:{count} has nothing to trace: the run ends after "
                         f"{settings.epochs} epochs of {iterations_per_epoch} iterations"
                         + (f", and --max-iterations {settings.max_iterations}"
                            if settings.max_iterations else ""))
    return range(begin, end)


def top_operators(profiler: profile) -> list[dict[str, Any]]:
    """The operators with the most time of their own, slowest first: name, calls, seconds, share.

    Seconds are the device's where there is one; shares are of all operators together.
    """
    on_device = torch.profiler.ProfilerActivity.CUDA in profiler.activities
    attribute = "self_device_time_total" if on_device else "self_cpu_time_total"
    rows = [(event.key, event.count, getattr(event, attribute) / 1e6)
            for event in profiler.key_averages()
            if event.key not in PHASES and not is_communication(event.key)]
    total = sum(seconds for _, _, seconds in rows) or 1.0
    rows.sort(key=lambda row: row[2], reverse=True)
    return [{"name": name, "calls": calls, "seconds": round(seconds, 6),
             "share": round(seconds / total, 4)} for name, calls, seconds in rows[:SHOWN_OPERATORS]]
