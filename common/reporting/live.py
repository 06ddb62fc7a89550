"""Draws the page again and again while runs go on.

    python3 scripts/compare.py outputs --watch
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from common.core.failures import DataError
from common.reporting.recorded_run import RecordedRun, find_runs
from common.reporting.run_state import state_of

PAUSE = 5.0  # seconds between two looks, at least
LONGEST = 15  # seconds until a browser looks: the first drawing, with all traces, takes longest
SHARE = 0.25  # of a core is spent on them, at most: training may need it
NICE = 10  # at 19, four ranks on two cores leave so little that the page is minutes old
QUIET = 60.0  # seconds after the last run's end, in which another one may begin


def watch(folders: Sequence[Path], draw: Callable[[list[RecordedRun], int], object],
          say: Callable[[str], None], pause: float = PAUSE, quiet: float = QUIET) -> None:
    """Calls `draw` with the runs in `folders` and the seconds until the next look.

    It does so whenever their logs have grown, and returns when all runs have stood still for
    `quiet` seconds. Waits for missing folders, and says so. This process gives way to all others.
    """
    os.nice(NICE)
    drawn: object = None
    last, named, wait = time.monotonic(), "", pause
    while True:
        begun, used = time.monotonic(), time.process_time()
        runs, missing = _look(folders)
        if missing not in ("", named):
            say(f"waiting: {missing}")
            named = missing
        now = [(run.folder, len(run.steps), len(run.events), _goes_on(run)) for run in runs]
        if not runs or now != drawn or any(map(_goes_on, runs)):
            last = begun
        if begun - last > quiet:
            return
        if runs and now != drawn:
            draw([_whole(run) for run in runs], min(ceil(wait), LONGEST))
            drawn = now
        wait = max(pause, (time.process_time() - used) / SHARE)
        time.sleep(wait)


def _look(folders: Sequence[Path]) -> tuple[list[RecordedRun], str]:
    """The runs in the folders, or a sentence on what is missing."""
    try:
        return find_runs(folders), ""
    except DataError as error:
        return [], str(error)


def _goes_on(run: RecordedRun) -> bool:
    return state_of(run, time.time()).is_running


def _whole(run: RecordedRun) -> RecordedRun:
    """The run without its last iteration, if only some of the ranks have logged it so far."""
    *_, last = run.steps
    if len(run.steps[last]) == max(map(len, run.steps.values())) or not _goes_on(run):
        return run
    return replace(run, steps={place: row for place, row in run.steps.items() if place != last})
