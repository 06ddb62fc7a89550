"""A run as its JSON lines tell it, for figures and comparisons: no torch, no model, no data.

    python3 -c "from common.reporting.recorded_run import *; print(*find_runs([Path('outputs')]))"
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from common.core.events import read_events
from common.core.failures import DataError
from common.core.metrics import ACCURACY, Metric
from common.core.progress import PHASES
from common.reporting.merged_steps import (
    Steps,
    averages_in_backward,
    by_place,
    leaders_starts,
    logs_of_runs,
    members,
    merge,
    rank_of,
)

ORDER = ("PartOne", "PartTwo/gather-scatter", "PartTwo/all-reduce", "PartThree")

STARTS_WITH = ("settings", "world_size", "time", "processor", "cores", "ran_on",
               "iterations_per_epoch")


@dataclass(frozen=True)
class RecordedRun:
    """`name` is its folder's, below the folders that were searched. `events` are its leader's.

    `steps` holds the steps of every rank whose log is there, by (epoch, iteration), by rank;
    `memory` the most bytes that a rank has held, by kind.
    """

    name: str
    folder: Path
    events: list[dict[str, Any]]
    steps: Steps
    hosts: dict[int, str] = field(default_factory=dict)
    memory: dict[int, dict[str, int]] = field(default_factory=dict)

    def last(self, kind: str) -> dict[str, Any]:
        """The last event of a kind; {} if it never occurred."""
        return next((event for event in reversed(self.events) if event["event"] == kind), {})

    @property
    def start(self) -> dict[str, Any]:
        return self.last("start")

    @property
    def settings(self) -> dict[str, Any]:
        return self.start["settings"]

    @cached_property
    def changes(self) -> list[tuple[int, dict[str, Any]]]:
        """Where the run went on with other ranks: the steps done before, and the event."""
        pairs = zip(self.events[:-1], self.events[1:], strict=True)
        return [(start["position"][2], event) for start, event in pairs
                if event["event"] == "regrouped"]

    @property
    def metric(self) -> Metric:
        """The metric that is reported beside the loss."""
        return Metric(**self.start["metric"]) if "metric" in self.start else ACCURACY

    @property
    def test_score(self) -> float | None:
        """The metric's mean over the test set; None before there is one."""
        return self.last("evaluation").get(f"test_{self.metric.key}")

    @property
    def ranks(self) -> int:
        return self.start["world_size"]

    @cached_property
    def merged(self) -> list[dict[str, Any]]:
        """One record for each iteration of all ranks: see common/reporting/merged_steps.py."""
        return [merge(place, ranks, self.metric.key)
                for place, ranks in self.steps.items()]

    @cached_property
    def durations(self) -> list[float]:
        """Seconds of each iteration's slowest rank; the first, a warm-up, excluded."""
        return [row["seconds"] for row in self.merged[1:]]

    @property
    def mean(self) -> float | None:
        """Mean seconds an iteration; None if no iteration was timed."""
        return fmean(self.durations) if self.durations else None

    @property
    def images_per_second(self) -> float | None:
        return self.settings["batch_size"] / self.mean if self.mean else None

    @cached_property
    def phases(self) -> dict[int, dict[str, float]]:
        """Mean seconds of each phase, by rank, the first iteration excluded; empty if untimed."""
        timed = list(self.steps.values())[1:]
        ranks = sorted({rank for row in timed for rank in row})
        return {rank: {phase: fmean(row[rank]["seconds"][phase] for row in timed if rank in row)
                       for phase in PHASES} for rank in ranks}

    @property
    def bytes_sent(self) -> dict[int, int]:
        """Bytes that each rank sent in an iteration, on average."""
        ranks = sorted(list(self.steps.values())[-1])
        return {rank: round(fmean(row[rank]["bytes_sent"] for row in self.steps.values()
                                  if rank in row)) for rank in ranks}

    @cached_property
    def overlaps_sync(self) -> bool:
        """True if averaging happens inside backward, as in DDP."""
        return self.ranks > 1 and averages_in_backward(self.steps)


def short(name: str) -> str:
    """A run's name without its part, if the strategy makes that clear."""
    return name.replace("PartTwo/", "").replace("PartThree", "DDP")


def capital(sentence: str) -> str:
    """The sentence with a capital letter, unless it begins with a name out of a user's file."""
    is_own = "." in sentence.partition(" ")[0][:-1]
    return sentence if is_own else sentence[:1].upper() + sentence[1:]


def find_runs(folders: Iterable[Path]) -> list[RecordedRun]:
    """The runs in these folders and below, parts in the order of the lesson.

    A run without a step of its leader's is passed over. Raises DataError when none is
    left, or when a folder is missing.
    """
    folders = list(folders)
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise DataError(f"there is no folder {missing[0]}")
    runs = [run for key, paths in logs_of_runs(folders)
            if (run := _read(_name(key, folders), paths))]
    if not runs:
        raise DataError(f"no run with a step in {', '.join(map(str, folders))}: metrics_rank0.jsonl"
                        " files are looked for, there and below")
    return sorted(runs, key=lambda run: ([not run.name.endswith(part) for part in ORDER],
                                         run.ranks, run.name))


def _read(name: str, paths: list[Path]) -> RecordedRun | None:
    starts, steps = leaders_starts(paths), by_place(paths)
    leader = members(starts[-1])[0] if starts else 0
    leaders = [path for path in paths if rank_of(path) == leader]
    if not leaders or not any(leader in row for row in steps.values()):
        return None
    hosts = {rank_of(path): event.get("host", "") for path in paths
             for event in read_events(path, "start")}
    memory = {rank_of(path): {kind: size for kind, size in event.items() if kind != "event"}
              for path in paths for event in read_events(path, "memory")}
    run = RecordedRun(name, leaders[0].parent, list(read_events(leaders[0])), steps, hosts, memory)
    if run.start and (missing := set(STARTS_WITH) - run.start.keys()):
        raise DataError(f"{run.folder} was logged by an older version of this program, which did "
                        f"not write {', '.join(sorted(missing))}")
    return run if run.start else None


def _name(key: Path, folders: list[Path]) -> str:
    """The run's name: short for one searched folder, with the folder's own name for several."""
    for folder in folders:
        if key.is_relative_to(folder):
            inner = key.relative_to(folder)
            whole = inner if len(folders) == 1 else folder.name / inner
            return str(whole) if str(whole) != "." else folder.resolve().name
    return str(key)
