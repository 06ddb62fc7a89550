"""How far a predicted step may be off: 95 % error bars, where there are enough measured cells.

    python3 scripts/predict.py docs/results/sync_grid.json --nodes 4 --rate 300mbit

Two things make a prediction wrong, and their bars are added in quadrature. The model: each cell is
excluded once, predicted from the rest, and compared. The measurement: steps of one cell differ,
so that the few which calibrate the model are off by their standard error. Fewer than three cells,
or cells of a single step each, tell neither, and there is no bar.
"""

from collections.abc import Callable, Sequence
from math import hypot, sqrt
from statistics import fmean
from typing import NamedTuple

from common.core.spread import student
from studies.prediction.calibration import Calibration, checks, variants
from studies.prediction.grid import Cell

LEAST_CELLS = 3  # two, each predicted from the other alone, are not enough
LEAST_ERROR = 0.02  # of a step: no model of a few constants is better than that
Errors = dict[str, list[float]]


class Spread(NamedTuple):
    """Of measured steps about their cell's mean: relative squares, and how many of them are free.

    `steps` is how many were measured.
    """

    squares: float
    freedom: int
    steps: int

    @property
    def deviation(self) -> float:
        """The relative standard deviation of a step; nan where no cell has two."""
        return sqrt(self.squares / self.freedom) if self.freedom else float("nan")


def error_bars(cells: Sequence[Cell],
               fit: Callable[[Sequence[Cell]], Calibration]) -> dict[str, float | None]:
    """Half of each variant's error bar, relative to the step; None where there is none."""
    errors, everything = _leave_one_out(cells, fit), spread(cells)
    return {name: _bar(errors, name, spread(cells, name), everything) for name in variants(cells)}


def spread(cells: Sequence[Cell], name: str | None = None) -> Spread:
    """Of one variant's steps, or of all variants'."""
    groups = [cell["variants"][each]["steps"] for cell in cells for each in variants([cell])
              if name in (None, each)]
    squares = sum((step / fmean(steps) - 1) ** 2 for steps in groups for step in steps)
    return Spread(squares, sum(len(steps) - 1 for steps in groups), sum(map(len, groups)))


def _leave_one_out(cells: Sequence[Cell], fit: Callable[[Sequence[Cell]], Calibration]) -> Errors:
    """The relative errors on each cell when it is excluded, by variant."""
    found: Errors = {name: [] for name in variants(cells)}
    for cell in cells if len(cells) >= LEAST_CELLS else []:
        for check in checks(fit([each for each in cells if each is not cell]), [cell]):
            found[check.name].append(check.error)
    return found


def _bar(errors: Errors, name: str, own: Spread, everything: Spread) -> float | None:
    """Of a variant whose errors are known: half its own and half of all, as a few say little."""
    if len(errors[name]) < LEAST_CELLS or not everything.freedom:
        return None
    everybody = [error for each in errors.values() for error in each]
    model = sqrt((_square(errors[name]) + _square(everybody)) / 2)
    known = own if own.freedom else everything
    measurement = student(known.freedom) * known.deviation / sqrt(own.steps)
    return max(LEAST_ERROR, hypot(student(len(errors[name])) * model, measurement))


def _square(errors: Sequence[float]) -> float:
    return fmean(error**2 for error in errors)
