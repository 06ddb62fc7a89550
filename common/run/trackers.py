"""Experiment trackers: an object with three methods. The leader has one, the other ranks have none.

    python3 PartOne/main.py --tracker tensorboard && tensorboard --logdir outputs

Another tracker is a class like these and a line in TRACKERS: docs/trackers.md shows one.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.core.failures import UsageError


class Tracker:
    """Tracks nothing. Called by the leader alone: start once, log often, close once."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """The run begins, or goes on; `settings` are plain str, int, float, bool, list and None."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """`values` by name at iteration `step` of the run; a resumed run repeats no step."""

    def close(self) -> None:
        """Nothing comes after this; called also when the run fails."""


class TensorBoard(Tracker):
    """Scalars and the settings as TensorBoard's event files in `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("--tracker tensorboard needs a package that is not installed: "
                             f"{sys.executable} -m pip install -r requirements-tracker.txt "
                             f"({error})") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def start(self, settings: Mapping[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in settings.items())
        self._writer.add_text("settings", f"| flag | value |\n|---|---|\n{rows}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "none": lambda folder: Tracker(), "tensorboard": TensorBoard}


def create_tracker(name: str, folder: Path, is_leader: bool) -> Tracker:
    """A tracker by its name on the command line; none for the other ranks."""
    return TRACKERS[name](folder) if is_leader else Tracker()
