"""Experiment trackers: an object with three methods. The leader has one, the other ranks have none.

    python3 PartOne/main.py --tracker tensorboard && tensorboard --logdir outputs
    python3 PartOne/main.py --tracker page       # renews outputs/PartOne/comparison.html
    python3 PartOne/main.py --tracker examples/own_tracker.py:CsvTracker
"""

import os
import secrets
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

PROJECT = "training"
# Otherwise wandb asks for an account, copies the terminal, and tells its makers of errors.
WANDB_VARIABLES = {"WANDB_MODE": "offline", "WANDB_PROJECT": PROJECT, "WANDB_CONSOLE": "off",
                   "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


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


class Wandb(Tracker):
    """Metrics, and the settings as its config, in a run of wandb's project PROJECT.

    Offline, unless WANDB_MODE says otherwise: files in `folder`/wandb, which `wandb sync` sends. A
    resumed run goes on in the same one, whose id stands in `folder`/wandb/run.txt. A run without a
    result on the test set ends as failed. Raises UsageError where wandb cannot start.
    """

    def __init__(self, folder: Path) -> None:
        for variable, value in WANDB_VARIABLES.items():
            os.environ.setdefault(variable, value)
        import wandb

        number = folder / "wandb" / "run.txt"
        number.parent.mkdir(parents=True, exist_ok=True)
        if not number.exists():
            number.write_text(secrets.token_hex(4))
        self._wandb, self._has_result = wandb, False
        try:
            self._run = wandb.init(dir=folder, id=number.read_text(), resume="allow",
                                   name=os.environ.get("WANDB_NAME") or folder.name)
        except wandb.Error as error:
            raise UsageError(f"--tracker wandb cannot start: {first_line(error)}") from error

    def start(self, settings: Mapping[str, Any]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)
        self._has_result |= any(name.startswith("test/") for name in values)

    def close(self) -> None:
        self._run.finish(exit_code=0 if self._has_result else 1)
        self._wandb.teardown()  # ends its process


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "none": lambda folder: Tracker(), "page": LivePage, "tensorboard": TensorBoard,
    "wandb": Wandb}
_PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


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
        if name in _PACKAGES:
            import_module(_PACKAGES[name])
    except ImportError as error:
        raise UsageError(f"--tracker {name} needs a package that is not installed: "
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
