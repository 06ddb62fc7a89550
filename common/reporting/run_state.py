"""The state of runs, from their logs alone: progress, speed, and whether they live.

    python3 scripts/status.py outputs
"""

import fcntl
import os
from collections import Counter
from collections.abc import Iterable
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from common.core.failures import PeerLost
from common.core.files import read_text
from common.core.progress import PHASES, slowest_phase
from common.reporting.recorded_run import RecordedRun

RECENT = 20  # iterations that loss, speed and phase are taken from
PATIENCE = 60.0  # seconds of silence, or ten iterations if that is longer


class RunState(NamedTuple):
    """The state of a run in `words`, with the exit code for it, and its progress.

    Of `last` iterations `done` are, which are all of them where it had trained more before it was
    resumed with fewer; `speed` has recent loss, speed and phase. A run that is neither running nor
    finished has failed, been killed, or fallen silent.
    """

    title: str
    words: str
    code: int
    is_running: bool
    place: str
    done: int
    last: int
    speed: str

    @property
    def is_finished(self) -> bool:
        return not (self.is_running or self.code)

    @property
    def condition(self) -> str:
        """The condition in a word: running, finished, failed, killed or silent."""
        return self.words.partition(" ")[0].rstrip(",:")

    @property
    def percent(self) -> str:
        return f"{100 * self.done / self.last:.0f} %"


def state_of(run: RecordedRun, now: float) -> RunState:
    """The state of a run; `now` is a time.time() value."""
    steps = [row[0] for row in run.steps.values() if 0 in row]
    recent, place = steps[-RECENT:], steps[-1]
    usual = median(step["duration"] for step in recent)
    per_epoch = run.start["iterations_per_epoch"]
    last = int(min(run.settings["epochs"] * per_epoch, run.settings["max_iterations"] or inf))
    done = (place["epoch"] - 1) * per_epoch + place["iteration"] + 1
    words, code, is_running = _life(run, now, usual)
    left = f", {duration(usual * (last - done))} left" if is_running and done <= last else ""
    return RunState(
        f"{run.name} on {run.ranks} rank{'s' * (run.ranks > 1)}", words, code, is_running,
        _place(run, place["epoch"], done, last) + left, min(done, last), last,
        _speed(run, recent, usual))


def _place(run: RecordedRun, epoch: int, done: int, last: int) -> str:
    if done > last:
        return f"epoch {epoch}, iteration {done}: resumed with {last} in all, so none was left"
    return (f"epoch {epoch} of {run.settings['epochs']}, iteration {done} of {last} "
            f"({100 * done / last:.0f} %)")


def tally(states: Iterable[RunState]) -> str:
    """Counts the runs in each condition: "3 finished, 1 running"; "finished" if all are."""
    counts = Counter(state.condition for state in states)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(
        f"{count} {condition}" for condition, count in counts.items())


def _life(run: RecordedRun, now: float, usual: float) -> tuple[str, int, bool]:
    """(sentence, exit code, whether the run goes on); `usual` are seconds an iteration."""
    outcome = next(event for event in reversed(run.events)
                   if event["event"] in ("start", "failed", "end"))
    log = run.folder / "metrics_rank0.jsonl"
    silence = now - log.stat().st_mtime if log.exists() else 0.0  # it is about to be replaced
    if outcome["event"] == "end":
        return "finished", 0, False
    if outcome["event"] == "failed":
        code = outcome["exit_code"]
        return f"failed (exit code {code}): {outcome['why']}", code, False
    if _is_killed(run.folder / ".lock_rank0"):
        return (f"killed: its process has ended without a word, {duration(silence)} after its last",
                PeerLost.exit_code, False)
    if silence > max(PATIENCE, 10 * usual):
        return (f"silent for {duration(silence)}: killed, or its machine is gone",
                PeerLost.exit_code, False)
    return f"running, last heard {duration(silence)} ago", 0, True


def _is_killed(lock: Path) -> bool:
    """True if the process that common/run/folder_lock.py notes in `lock` ran here, and is gone.

    One of another container is known by its lock alone, and one that is about to say why it ends
    by its number.
    """
    try:
        pid, host = read_text(lock).split()
        if host != os.uname().nodename or Path("/proc", pid).exists():
            return False
        with lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError):
        return False
    return True


def _speed(run: RecordedRun, recent: list[dict], usual: float) -> str:
    phase, fraction = slowest_phase({name: sum(step["seconds"][name] for step in recent)
                                     for name in PHASES})
    several = f"{len(recent)} iterations" if len(recent) > 1 else "iteration"
    return (f"loss {fmean(step['loss'] for step in recent):.3f} (last {several}, "
            f"rank 0), {run.settings['batch_size'] / usual:.0f} samples/s (median), mostly {phase} "
            f"({100 * fraction:.0f} %)"
            + ("" if run.test_score is None
               else f", test {run.metric.name} {run.metric.shown(run.test_score)}"))


def describe(run: RecordedRun, now: float) -> tuple[str, int]:
    """Describes a run's state in three lines; also returns its exit code."""
    state = state_of(run, now)
    return f"{state.title}: {state.words}\n  {state.place}\n  {state.speed}", state.code


def duration(seconds: float) -> str:
    """A duration with two units at most: "3 s", "12 min 5 s", "2 h 10 min"."""
    whole = max(0, round(seconds))
    for unit, length, smaller, smaller_length in (("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // smaller_length
            return f"{whole // length} {unit} {rest} {smaller}"
    return f"{whole} s"
