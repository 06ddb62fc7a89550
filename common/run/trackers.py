"""Experiment trackers: an object with three methods. The leader has one, the other ranks have none.

    python3 PartOne/main.py --tracker tensorboard && tensorboard --logdir outputs
    python3 PartOne/main.py --tracker page       # renews outputs/PartOne/comparison.html
    python3 PartOne/main.py --tracker examples/own_tracker.py:CsvTracker
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from common.core.console import console
from common.core.failures import UsageError, first_line
from common.core.provenance import ROOT
from common.core.world import World
from common.settings.user_code import Place


class Tracker:
    """Tracks nothing. Called by the leader alone: start once, log often, close once."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """The run begins, or goes on; `settings` are plain str, int, float, bool, list and None."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """`values` by name at iteration `step` of the run.

        A resumed run goes on at its checkpoint, and logs again the steps that a killed one trained
        after it: the last value of a step counts.
        """

    def close(self) -> None:
        """Nothing comes after this; called also when the run fails."""


class LivePage(Tracker):
    """The page of scripts/compare.py in `folder`, renewed by a process of its own.

    That reads the run's logs at a low priority, outlives the run by a minute, in which it
    draws the end, and then ends by itself.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, settings: Mapping[str, Any]) -> None:
        command = [sys.executable, str(ROOT / "scripts/compare.py"), str(self._folder), "--watch"]
        console(World())(f"  this run's page, renewed as it goes on: "
                         f"{self._folder / 'comparison.html'}")
        # In a session of its own: what stops the run must not stop the page before its end.
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)


class TensorBoard(Tracker):
    """Scalars and the settings as TensorBoard's event files in `folder`/tensorboard.

    Where a resumed run goes on, `purge_step` hides what a killed one wrote from there on.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer: Any = None

    def start(self, settings: Mapping[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in settings.items())
        self._settings = f"| flag | value |\n|---|---|\n{rows}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open(purge_step=step)
            self._writer.add_text("settings", self._settings)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "none": lambda folder: Tracker(), "page": LivePage, "tensorboard": TensorBoard}


def find_tracker(name: str) -> Callable[[Path], Tracker]:
    """Returns the maker of tracker `name`, built in or of a user's file; it takes a run's folder.

    Raises UsageError if its package is not installed, or if the user's object is not a tracker;
    UserCodeError if the user's file fails.
    """
    if place := Place.parse(name):
        maker = place.load()
        if not callable(maker):
            raise UsageError(f"--tracker {name} is {type(maker).__name__}: it must be a class or a "
                             "function that takes the run's folder")
        if isinstance(maker, type):
            _require_methods(maker, name)
        with suppress(ValueError):  # some callables do not tell what they take
            try:
                signature(maker).bind(Path())
            except TypeError as error:
                raise UsageError(f"--tracker {name} cannot be called with the run's folder alone: "
                                 f"{first_line(error)}") from error
        return maker
    try:
        if name == "tensorboard":
            import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise UsageError("--tracker tensorboard needs a package that is not installed: "
                         f"{sys.executable} -m pip install -r requirements-tracker.txt "
                         f"({first_line(error)})") from error
    return TRACKERS[name]


def create_tracker(name: str, folder: Path, is_tracked: bool) -> Tracker:
    """A tracker by its name on the command line; none for the other ranks, and in a dry run."""
    if not is_tracked:
        return Tracker()
    tracker = find_tracker(name)(folder)
    _require_methods(tracker, name)
    return tracker


def _require_methods(tracker: object, name: str) -> None:
    missing = [method for method in ("start", "log", "close") if not hasattr(tracker, method)]
    if missing:
        raise UsageError(f"--tracker {name} has no {' and no '.join(missing)}: a tracker has "
                         "start(settings), log(step, values) and close()")
