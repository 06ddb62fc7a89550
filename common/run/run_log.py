"""Log files of a rank: a timing log in the assignment's wording, and JSON lines.

    tail -f outputs/PartTwo/all-reduce/logs_rank0.txt

`metrics_rankR.jsonl` holds the events that common/core/events.py lists. Durations are wall seconds
of the whole iteration, data loading included.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common.core.console import console
from common.core.events import read_events
from common.core.failures import UsageError
from common.core.files import replace_file
from common.core.memory import peak_memory
from common.core.metrics import ACCURACY, Metric, Totals
from common.core.progress import Position, slowest_phase
from common.core.provenance import processor
from common.core.visible import visible
from common.core.world import World
from common.run.trackers import Tracker

BATCH_LINE = ("Batch Idx: {}, Batch Loss: {:.3f}, Batch {metric}: {:.3f}, "
              "Batch Duration: {:.3f} seconds")
VALIDATION_LINE = "Epoch: {}, Validation Loss: {:.3f}, Validation {metric}: {:.3f}"
EPOCH_LINE = ("Epoch: {}, Train Loss: {:.3f}, Train {metric}: {:.3f}, "
              "Avg Batch Duration: {:.3f} seconds, Epoch Duration: {:.3f} seconds")


@dataclass(frozen=True)
class Step:
    """One iteration of this rank: the sums over its own samples, and where the time went.

    `duration` and `seconds`, by phase, are wall seconds. `of_all` are the sums over all ranks', in
    an elastic run, where a rank may be lost before it has written its own.
    """

    at: Position
    trained: Totals
    duration: float
    seconds: dict[str, float]
    bytes_sent: int
    learning_rate: float | None = None
    of_all: Totals | None = None


@dataclass
class RunLog:
    """Writes words to `text_path` and JSON lines to `metrics_path`; shows a bar on the leader.

    Use as a context manager. Files that are deleted meanwhile are written anew, after a call of
    `when_lost`. An existing JSONL is continued: what comes from `start` on, which a
    killed run wrote after its last checkpoint, is dropped, so that each step stands there once.
    """

    text_path: Path
    metrics_path: Path
    world: World
    start: Position = field(default_factory=Position)
    log_every: int = 20
    distributed: bool = False
    tracker: Tracker = field(default_factory=Tracker)
    metric: Metric = ACCURACY
    when_lost: Callable[[], None] = lambda: None
    _durations: list[float] = field(default_factory=list)

    def __enter__(self) -> "RunLog":
        self.say = console(self.world)
        self._prefix = f"Rank: {self.world.name}, " if self.distributed else ""
        try:
            for path in (self.text_path, self.metrics_path):
                path.parent.mkdir(parents=True, exist_ok=True)
            _keep_steps_before(self.metrics_path, self.start)
            self._text, self._metrics = _LogFile(self.text_path), _LogFile(self.metrics_path)
        except OSError as error:
            raise _unwritable(self.text_path, error) from error
        self._bar: tqdm | None = None
        self._last = self.start.step
        return self

    def __exit__(self, *error: object) -> None:
        self.close_bar()
        for file in (self._text, self._metrics):
            with suppress(OSError):  # every line is flushed, or its failure is on its way already
                file.close()
        self.tracker.close()

    def event(self, kind: str, **entries: Any) -> None:
        """Adds one JSON line."""
        self._append(self._metrics, json.dumps({"event": kind, **entries}))

    def note(self, text: str) -> None:
        """Says something worth keeping, on the screen and in both files."""
        self._line(text)
        self.event("note", text=text)

    def begin(self, settings: dict[str, Any], **entries: Any) -> None:
        """The run begins, or goes on: writes its settings, and what it runs on."""
        self.event("start", time=time.time(), host=socket.gethostname(), processor=processor(),
                   cores=len(os.sched_getaffinity(0)), settings=settings,
                   metric={"name": self.metric.name, "is_share": self.metric.is_share}, **entries)
        self.tracker.start(settings)

    def open_bar(self, epoch: int, done: int, iterations: int) -> None:
        """Starts an epoch: from here its durations count, and the leader's terminal gets a bar.

        The bar counts the iterations of the whole run, so that its time left is the run's. It goes
        to standard error, which mpirun reads through a pipe while standard output is a terminal.
        """
        self._durations = []
        if self.world.is_leader and sys.stdout.isatty() and sys.stderr.isatty():
            self._bar = tqdm(total=iterations, initial=done, desc=f"epoch {epoch}", leave=False)

    def close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def step(self, step: Step) -> None:
        """Writes one iteration; every `log_every` of them also in words."""
        self._last = step.at.step
        self._durations.append(step.duration)
        loss, score = step.trained.means()
        self.event("step", epoch=step.at.epoch, iteration=step.at.iteration, loss=loss,
                   samples=step.trained.samples,
                   loss_sum=str(step.trained.loss),  # exact
                   duration=round(step.duration, 6),
                   seconds=step.seconds, bytes_sent=step.bytes_sent,
                   learning_rate=step.learning_rate, **{self.metric.key: score},
                   **({"of_all": step.of_all.as_json()} if step.of_all else {}))
        if step.at.iteration % self.log_every == 0:
            self._line(self._prefix + BATCH_LINE.format(
                step.at.iteration, loss, score, step.duration, metric=self.metric.title))
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(_in_short(step, self.world.size))
        self.tracker.log(step.at.step, {"batch/loss": loss, f"batch/{self.metric.key}": score,
                                        "batch/seconds": step.duration})

    def evaluation(self, loss: float, score: float, **entries: Any) -> None:
        """Writes the test set's mean loss and metric."""
        self.event("evaluation", test_loss=loss, **{f"test_{self.metric.key}": score}, **entries)
        self.tracker.log(self._last, {"test/loss": loss, f"test/{self.metric.key}": score})

    def epoch(self, epoch: int, totals: Totals) -> None:
        """Writes an epoch's means over all samples of all ranks, without the first duration."""
        self.close_bar()
        loss, score = totals.means()
        timed = self._durations[1:] or self._durations or [float("nan")]
        mean, whole = sum(timed) / len(timed), sum(self._durations)
        self.event("epoch", epoch=epoch, loss=loss, samples=totals.samples,
                   mean_iteration_seconds=mean, seconds=whole, **{self.metric.key: score})
        self.event("memory", **peak_memory())
        self.tracker.log(self._last, {"epoch/loss": loss, f"epoch/{self.metric.key}": score})
        resumed = self._durations and epoch == self.start.epoch and self.start.iteration
        self._line(self._prefix + EPOCH_LINE.format(epoch, loss, score, mean, whole,
                                                    metric=self.metric.title)
                   + f" since the resume at iteration {resumed}" * bool(resumed))

    def validation(self, epoch: int, loss: float, score: float, **entries: Any) -> None:
        """Writes an epoch's means over the validation set; `entries` go to the JSON alone."""
        self.close_bar()
        key = self.metric.key
        self.event("validation", epoch=epoch, loss=loss, **{key: score}, **entries)
        self.tracker.log(self._last, {"validation/loss": loss, f"validation/{key}": score})
        self._line(self._prefix + VALIDATION_LINE.format(epoch, loss, score,
                                                         metric=self.metric.title))

    def _line(self, text: str) -> None:
        self._append(self._text, visible(text))
        self.say(text)

    def _append(self, file: "_LogFile", line: str) -> None:
        try:
            if self._text.is_lost() or self._metrics.is_lost():
                self._write_anew()
            file.append(line)
        except OSError as error:
            raise _unwritable(file.path, error) from error

    def _write_anew(self) -> None:
        self.when_lost()
        for file in (self._text, self._metrics):
            file.write_anew()
        self.note(f"warning: the logs in {self.text_path.parent} were deleted or moved away: logs "
                  "and settings are written anew, and a checkpoint when the next is due")


def _in_short(step: Step, ranks: int) -> str:
    phase, share = slowest_phase(step.seconds)
    speed = step.trained.samples * ranks / step.duration
    return (f"loss {step.trained.means()[0]:.3f}, {speed:.0f} samples/s, "
            f"mostly {phase} ({100 * share:.0f} %)")


class _LogFile:
    """A text file that lines are added to, and that knows what it held when it is deleted."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, path.open("a+")

    def append(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def is_lost(self) -> bool:
        """Returns True if the open file is not, or no longer, the one at the path."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def write_anew(self) -> None:
        """Goes on in the file at the path: what an editor has saved, or a copy of what is lost."""
        self._file.seek(0)
        before = "" if self.path.exists() else self._file.read()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.close()
        self._file = self.path.open("a+")
        self._file.write(before)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the log {path} cannot be written: {error.strerror}")


def _keep_steps_before(path: Path, start: Position) -> None:
    kept = [event for event in read_events(path) if _is_before(event, start)]
    if path.exists():
        replace_file(path, "".join(json.dumps(event) + "\n" for event in kept).encode())


def _is_before(event: dict[str, Any], start: Position) -> bool:
    """Returns True if a run that goes on at `start` does not write the event again.

    An epoch's end comes after all its steps.
    """
    if event["event"] == "checkpoint":
        return tuple(event.get("position", ())) <= start
    if event["event"] in ("step", "validation", "epoch", "evaluation", "end"):
        return (event.get("epoch", float("inf")), event.get("iteration", float("inf"))) < start[:2]
    return True
