"""The model's constants, out of measured cells: the file that benchmarks/sync.py writes.

    python3 scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:1gbit 2:none

Compute comes from the compute-only steps, as the link's rate does not change them:
oversubscription * (fixed + image * images), where oversubscription is the number of ranks a
processor. The communication overhead less the link's part is the strategy's processor cost.

Error bars are earned: each cell is excluded once, predicted from the rest, and compared with what
was measured, so that the errors of the model and of the measurement are both in them. A bar is as
wide as held 95 % of these errors. Fewer than three cells have no bar. Bars hold between the cells,
not beyond: for more nodes than were measured there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, sqrt
from statistics import fmean, linear_regression, median

import numpy as np

from common.core.failures import DataError
from common.core.spread import student
from studies.prediction.calibration import Calibration, checks, measured, variants
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.model import STRATEGIES, Cost, Gradient, Machine, link_seconds

TRIES = 400  # of the overlapped cost, from none to all that was seen where links are fastest
SLOWDOWNS = np.linspace(1, 2, 51)
SLOWDOWN_PRICE = 0.01  # a slowdown of 1.1 must make errors smaller by 1 % of a step
LEAST_CELLS = 3  # two, each predicted from the other alone, are not enough
LEAST_ERROR = 0.02  # of a step: no model of a few constants is better than that
COVERAGE = 0.95
Errors = dict[str, list[float]]


def calibrate(cells: Sequence[Cell], machine: Machine, batch: int,
              latency: float = 0.0) -> Calibration:
    """The model that fits these cells best. Raises DataError when there is none."""
    if not cells:
        raise DataError("there is no cell to calibrate the model on")

    def fit(seen: Sequence[Cell]) -> Calibration:
        return _fit(seen, machine, batch, latency)

    return replace(fit(cells), errors=error_bars(cells, fit))


def _fit(cells: Sequence[Cell], machine: Machine, batch: int, latency: float) -> Calibration:
    fixed, image, update = _fit_compute(cells, machine, batch)
    phases = [cell["variants"][COMPUTE_ONLY]["phases"] for cell in cells]
    backward = median(each["backward"] / (each["forward"] + each["backward"]) for each in phases)
    nodes = [cell["nodes"] for cell in cells]
    found = Calibration(machine, batch, _gradient(cells), fixed, image, update, backward, latency,
                        {}, {}, (min(nodes), max(nodes)))
    costs = {name: _fit_cost(name, cells, found) for name in variants(cells)[1:]}
    return replace(found, costs=costs)


def _fit_compute(cells: Sequence[Cell], machine: Machine,
                 batch: int) -> tuple[float, float, float]:
    """(fixed, image, update) seconds of a rank with a processor of its own.

    A straight line through the medians by number of ranks; where all cells have the same number,
    the update is what is fixed.
    """
    slower = {cell["nodes"]: machine.oversubscription(cell["nodes"]) for cell in cells}
    update = median(cell["variants"][COMPUTE_ONLY]["phases"]["update"] / slower[cell["nodes"]]
                    for cell in cells)
    points = [(batch / ranks, median(step for cell in cells if cell["nodes"] == ranks
                                     for step in cell["variants"][COMPUTE_ONLY]["steps"]) / times)
              for ranks, times in slower.items()]
    line = linear_regression(*zip(*points, strict=True)).intercept if len(points) > 1 else update
    fixed = min(max(0.0, line), *(seconds for _, seconds in points))
    return fixed, fmean((seconds - fixed) / images for images, seconds in points), update


def _gradient(cells: Sequence[Cell]) -> Gradient:
    """Tensors in the order of buckets, the last layer's first, as backward has them."""
    ready = [median(each) for each in zip(*(
        [min(1.0, at / cell["variants"][COMPUTE_ONLY]["phases"]["backward"])
         for at in cell["ready"]] for cell in cells), strict=True)]
    return Gradient(tuple(cells[0]["gradient_bytes"][::-1]), tuple(ready[::-1]))


def _fit_cost(name: str, cells: Sequence[Cell], model: Calibration) -> Cost:
    """The least squares of relative errors: the best serial cost for all others that are tried.

    Where no cell tells a slowdown from a cost, there is none: see SLOWDOWN_PRICE.
    """
    strategy, rows = STRATEGIES[name], []
    for cell in (cell for cell in cells if name in cell["variants"]):
        ranks, step = cell["nodes"], measured(cell, name)
        slower, compute = model.machine.oversubscription(ranks), model.compute(ranks)
        link = model.link(payload_rate(cell["rate"]))
        rows.append((step, step - compute.seconds, strategy.serial(ranks, slower),
                     strategy.overlapped(ranks, slower), *(
                         link_seconds(strategy, model.gradient, compute, ranks,
                                      Cost(0, 0, slowdown).slowed(link))
                         for slowdown in SLOWDOWNS)))
    steps, extra, serial, overlapped, *links = np.array(rows).T  # a value for each cell
    tried = max(0.0, (extra / overlapped).min()) * np.linspace(0, 1, TRIES)
    rest = (extra - np.maximum(np.array(links)[:, None], tried[:, None] * overlapped)) / steps
    share = serial / steps
    best = np.maximum(0, (rest * share).sum(-1) / (share**2).sum())
    misfit = (((rest - best[..., None] * share) ** 2).sum(-1)
              + SLOWDOWN_PRICE * (SLOWDOWNS[:, None] - 1) ** 2)
    slowdown, load = np.unravel_index(misfit.argmin(), misfit.shape)
    return Cost(float(best[slowdown, load]), float(tried[load]), float(SLOWDOWNS[slowdown]))


def error_bars(cells: Sequence[Cell],
               fit: Callable[[Sequence[Cell]], Calibration]) -> dict[str, float | None]:
    """Half of each variant's error bar, relative to the step; None where there is none.

    A variant's errors are compared with its scale, the root mean square of its own errors and of
    all, half each, because few errors say little. The bar is as many scales as held 95 % of errors.
    """
    errors = _leave_one_out(cells, fit)
    everybody = [error for each in errors.values() for error in each]
    scales = {name: sqrt((_square(own) + _square(everybody)) / 2)
              for name, own in errors.items() if len(own) >= LEAST_CELLS}
    times = _times([abs(error) / scale for name, scale in scales.items() if scale
                    for error in errors[name]], len(cells))
    return {name: max(LEAST_ERROR, times * scales[name]) if name in scales else None
            for name in errors}


def _times(errors: Sequence[float], cells: int) -> float:
    """How many scales hold COVERAGE of further errors, as these did, of so many cells.

    One of n errors is the largest of n + 1 with probability 1 / (n + 1); where that is too often,
    Student's t for the cells, if it is more than the largest.
    """
    place = ceil(COVERAGE * (len(errors) + 1))
    if place <= len(errors):
        return sorted(errors)[place - 1]
    return max([*errors, student(cells)])


def _leave_one_out(cells: Sequence[Cell], fit: Callable[[Sequence[Cell]], Calibration]) -> Errors:
    """The relative errors on each cell when it is excluded, by variant."""
    found: Errors = {name: [] for name in variants(cells)}
    for cell in cells if len(cells) >= LEAST_CELLS else []:
        for check in checks(fit([each for each in cells if each is not cell]), [cell]):
            found[check.name].append(check.error)
    return found


def _square(errors: Sequence[float]) -> float:
    return fmean(error**2 for error in errors)
