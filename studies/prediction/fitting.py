"""The model's constants, out of measured cells: the file that benchmarks/sync.py writes.

    python3 scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:1gbit 2:none

Compute comes from the compute-only steps, as the link's rate does not change them: oversubscription
* (fixed + image * images), where oversubscription is the number of ranks a processor. The
communication overhead less the link's part is the strategy's processor cost.

Error bars come from cross-validation: each cell is excluded once, predicted from the rest, and
compared with its measurement, so that they hold the errors of both the model and the measurement. A
bar is as wide as held 95 % of these errors. Fewer than three cells do not have bars. Bars hold
between the cells, not beyond: predictions for more nodes than were measured do not have one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf, sqrt
from statistics import fmean, linear_regression, median
from typing import NamedTuple

from common.core.failures import DataError
from common.core.spread import student
from studies.prediction.calibration import Calibration, checks, measured, variants
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.model import STRATEGIES, Cost, Gradient, Machine, link_seconds

TRIES = 400  # of the overlapped cost, from none to all that was seen where links are fastest
SLOWDOWNS = [1 + step / 50 for step in range(51)]
SLOWDOWN_PRICE = 0.01  # a slowdown of 1.1 must make errors smaller by 1 % of a step
ROUNDING = 1e-12  # of misfits: of equal ones the smallest slowdown and load count
LEAST_CELLS = 3  # two, each predicted from the other alone, are not enough
LEAST_ERROR = 0.02  # of a step: no model of a few constants is better than that
COVERAGE = 0.95
Errors = dict[str, list[float]]


def calibrate(cells: Sequence[Cell], machine: Machine, batch: int,
              latency: float = 0.0) -> Calibration:
    """The model that fits these cells best. Raises DataError for no cells."""
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
    model = Calibration(machine, batch, _gradient(cells), fixed, image, update, backward, latency,
                        {}, {}, (min(nodes), max(nodes)))
    costs = {name: _fit_cost(name, cells, model) for name in variants(cells)[1:]}
    return replace(model, costs=costs)


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


class Overhead(NamedTuple):
    """The overhead of averaging in a step of one cell, and the cost of handling the gradient once.

    All relative to the step; `links` has the link's part at each of SLOWDOWNS.
    """

    extra: float
    serial: float
    overlapped: float
    links: list[float]


def _fit_cost(name: str, cells: Sequence[Cell], model: Calibration) -> Cost:
    """The cost with the least squares of relative errors: the best serial cost for each slowdown.

    If the cells cannot tell a slowdown from a cost, it is 0: see SLOWDOWN_PRICE.
    """
    rows = [_overhead(name, cell, model) for cell in cells if name in cell["variants"]]
    most = max(0.0, min(row.extra / row.overlapped for row in rows))
    loads = [most * part / (TRIES - 1) for part in range(TRIES)]
    best = inf, Cost(0.0)
    for number in range(len(SLOWDOWNS)):
        best = _better_at(number, rows, loads, best)
    return best[1]


def _overhead(name: str, cell: Cell, model: Calibration) -> Overhead:
    strategy, ranks, step = STRATEGIES[name], cell["nodes"], measured(cell, name)
    slower, compute = model.machine.oversubscription(ranks), model.compute(ranks)
    link = model.link(payload_rate(cell["rate"]))
    links = [link_seconds(strategy, model.gradient, compute, ranks,
                          Cost(0, 0, slowdown).slowed(link)) / step for slowdown in SLOWDOWNS]
    return Overhead((step - compute.seconds) / step, strategy.serial(ranks, slower) / step,
                    strategy.overlapped(ranks, slower) / step, links)


def _better_at(number: int, rows: Sequence[Overhead], loads: Sequence[float],
               best: tuple[float, Cost]) -> tuple[float, Cost]:
    """`best`, or a smaller misfit at SLOWDOWNS[number] with one of `loads`, which rise; its Cost.

    A cell's error is constant - load * slope - cost * serial. The sums over the cells change only
    where the load outgrows a cell's link, so that each load that is tried costs a few products.
    """
    waiting = sorted(rows, key=lambda row: row.links[number] / row.overlapped, reverse=True)
    price = SLOWDOWN_PRICE * (SLOWDOWNS[number] - 1) ** 2
    serial = sum(row.serial**2 for row in rows)
    constants = [row.extra - row.links[number] for row in rows]
    constant = sum(each * row.serial for each, row in zip(constants, rows, strict=True))
    square = sum(each**2 for each in constants)
    slope = mixed = steep = 0.0
    for load in loads:
        while waiting and load * waiting[-1].overlapped > waiting[-1].links[number]:
            row = waiting.pop()
            constant += row.links[number] * row.serial
            square += row.extra**2 - (row.extra - row.links[number]) ** 2
            slope += row.overlapped * row.serial
            mixed += row.extra * row.overlapped
            steep += row.overlapped**2
        rest = constant - load * slope
        cost = max(0.0, rest / serial)
        misfit = square - 2 * load * mixed + load**2 * steep - 2 * cost * rest + cost**2 * serial
        if misfit + price < best[0] - ROUNDING:
            best = misfit + price, Cost(cost, load, SLOWDOWNS[number])
    return best


def error_bars(cells: Sequence[Cell],
               fit: Callable[[Sequence[Cell]], Calibration]) -> dict[str, float | None]:
    """Half of each variant's error bar, relative to the step; None for a variant without a bar.

    A variant's scale is the root mean square of its own errors and of all, half each, because few
    errors alone are unreliable. The bar is as many scales as held 95 % of errors.
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
    """The number of scales that hold COVERAGE of further errors, given these and their cells.

    One of n errors is the largest of n + 1 with probability 1 / (n + 1); where that is too often,
    Student's t for the cells, if it is more than the largest.
    """
    place = ceil(COVERAGE * (len(errors) + 1))
    if place <= len(errors):
        return sorted(errors)[place - 1]
    return max([*errors, student(cells)])


def _leave_one_out(cells: Sequence[Cell], fit: Callable[[Sequence[Cell]], Calibration]) -> Errors:
    """The relative errors on each cell when it is excluded, by variant."""
    errors: Errors = {name: [] for name in variants(cells)}
    for cell in cells if len(cells) >= LEAST_CELLS else []:
        for check in checks(fit([each for each in cells if each is not cell]), [cell]):
            errors[check.name].append(check.error)
    return errors


def _square(errors: Sequence[float]) -> float:
    return fmean(error**2 for error in errors)
