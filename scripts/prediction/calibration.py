"""The model's constants, out of measured cells: the file that benchmarks/sync.py writes.

    python3 scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:1gbit 2:none

Compute comes from the compute-only steps, as the link's rate does not change them:
crowd * (fixed + image * images), where crowd is how many ranks share a processor. What averaging
adds to that, less the link's part, is the strategy's processor cost. Error bars are twice the
error that the model makes on each of these cells when it is calibrated without it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from common.failures import DataError, UsageError
from scripts.prediction.forms import Link
from scripts.prediction.model import (
    STRATEGIES,
    Compute,
    Cost,
    Gradient,
    Machine,
    exposed_seconds,
    link_seconds,
)
from scripts.prediction.rates import payload_rate

COMPUTE_ONLY = "compute only"
TRIES = 400  # of the hidden cost, from none to all that was seen where links are fastest
LEAST_ERROR = 0.02  # of a step, where no cell can be left out
Cell = dict[str, Any]


class Prediction(NamedTuple):
    """Seconds of a step, and the relative error to reckon with."""

    seconds: float
    error: float

    @property
    def low(self) -> float:
        return self.seconds * (1 - self.error)

    @property
    def high(self) -> float:
        return self.seconds * (1 + self.error)


@dataclass(frozen=True)
class Calibration:
    """The model with its constants: seconds, and bytes.

    A step alone takes fixed + image * images, of which `update` is the optimiser's; `backward` is
    backward's share of the rest.
    """

    machine: Machine
    batch: int
    gradient: Gradient
    fixed: float
    image: float
    update: float
    backward: float
    latency: float
    costs: dict[str, Cost]
    errors: dict[str, float]

    def compute(self, ranks: int) -> Compute:
        """The phases of a step on one of `ranks` ranks that averages nothing."""
        crowd = self.machine.crowd(ranks)
        whole = crowd * (self.fixed + self.image * self.batch / ranks)
        update = min(whole, crowd * self.update)
        return Compute((whole - update) * (1 - self.backward), (whole - update) * self.backward,
                       update)

    def on_own_machines(self) -> "Calibration":
        """The same nodes, each with processors of its own."""
        return replace(self, machine=replace(self.machine, machines=None))

    def link(self, bytes_per_second: float) -> Link:
        """Links of that rate; their latency is the calibrated one."""
        return Link(1 / bytes_per_second, self.latency)

    def seconds(self, name: str, ranks: int, link: Link) -> float:
        """Of a step with the strategy `name`. Raises UsageError for one that was not measured."""
        compute = self.compute(ranks)
        if name == COMPUTE_ONLY:
            return compute.seconds
        if name not in self.costs:
            raise UsageError(f"{name!r} was in none of the cells that the model is calibrated on")
        return compute.seconds + exposed_seconds(name, self.costs[name], self.gradient, compute,
                                                 ranks, link, self.machine)

    def predict(self, name: str, ranks: int, bytes_per_second: float) -> Prediction:
        """A step at a rate of payload, with its error bar."""
        return Prediction(self.seconds(name, ranks, self.link(bytes_per_second)),
                          self.errors.get(name, LEAST_ERROR))


def calibrate(cells: Sequence[Cell], machine: Machine, batch: int,
              latency: float = 0.0) -> Calibration:
    """The model that fits these cells best. Raises DataError when there is none."""
    if not cells:
        raise DataError("there is no cell to calibrate the model on")
    found = _fit(cells, machine, batch, latency)
    return replace(found, errors=_errors(cells, found))


def measured(cell: Cell, name: str) -> float:
    """The median step of a variant, in seconds."""
    return median(cell["variants"][name]["steps"])


def variants(cells: Sequence[Cell]) -> list[str]:
    """What was measured and the model knows, compute first."""
    return [name for name in (COMPUTE_ONLY, *STRATEGIES)
            if any(name in cell["variants"] for cell in cells)]


def _fit(cells: Sequence[Cell], machine: Machine, batch: int, latency: float) -> Calibration:
    fixed, image, update = _fit_compute(cells, machine, batch)
    found = Calibration(machine, batch, _gradient(cells), fixed, image, update,
                        _backward_share(cells), latency, {}, {})
    costs = {name: _fit_cost(name, cells, found) for name in variants(cells)[1:]}
    return replace(found, costs=costs)


def _fit_compute(cells: Sequence[Cell], machine: Machine,
                 batch: int) -> tuple[float, float, float]:
    """(fixed, image, update) seconds of an uncrowded rank.

    A straight line through the medians by number of ranks; where all cells have the same number,
    the update is what is fixed.
    """
    crowd = {cell["nodes"]: machine.crowd(cell["nodes"]) for cell in cells}
    update = median(cell["variants"][COMPUTE_ONLY]["phases"]["update"] / crowd[cell["nodes"]]
                    for cell in cells)
    points = [(batch / ranks, median(step for cell in cells if cell["nodes"] == ranks
                                     for step in cell["variants"][COMPUTE_ONLY]["steps"]) / times)
              for ranks, times in crowd.items()]
    fixed = _line(points) if len(points) > 1 else update
    fixed = min(max(0.0, fixed), *(seconds for _, seconds in points), update if len(points) < 2
                else float("inf"))
    return fixed, fmean((seconds - fixed) / images for images, seconds in points), update


def _line(points: Sequence[tuple[float, float]]) -> float:
    """Where the straight line through (x, y) points, by least squares, meets x = 0."""
    middle, level = (fmean(values) for values in zip(*points, strict=True))
    slope = (sum((x - middle) * (y - level) for x, y in points)
             / sum((x - middle) ** 2 for x, _ in points))
    return level - slope * middle


def _backward_share(cells: Sequence[Cell]) -> float:
    phases = [cell["variants"][COMPUTE_ONLY]["phases"] for cell in cells]
    return median(each["backward"] / ((each["forward"] + each["backward"]) or 1.0)
                  for each in phases)


def _gradient(cells: Sequence[Cell]) -> Gradient:
    """Tensors in the order of buckets, the last layer's first, as backward has them."""
    ready = [median(each) for each in zip(*(
        [min(1.0, at / cell["variants"][COMPUTE_ONLY]["phases"]["backward"])
         for at in cell["ready"]] for cell in cells), strict=True)]
    return Gradient(tuple(cells[0]["gradient_bytes"][::-1]), tuple(ready[::-1]))


class _Sample(NamedTuple):
    """What a cell says of a strategy: seconds in all, computing, on the link; handlings.

    `serial` and `hidden` are the strategy's loads there.
    """

    step: float
    compute: float
    link: float
    serial: float
    hidden: float


def _samples(name: str, cells: Sequence[Cell], model: Calibration) -> Iterator[_Sample]:
    strategy = STRATEGIES[name]
    for cell in cells:
        if name in cell["variants"]:
            ranks, compute = cell["nodes"], model.compute(cell["nodes"])
            crowd = model.machine.crowd(ranks)
            link = model.link(payload_rate(cell["rate"]))
            yield _Sample(measured(cell, name), compute.seconds,
                          link_seconds(strategy, model.gradient, compute, ranks, link),
                          strategy.serial(ranks, crowd), strategy.hidden(ranks, crowd))


def _fit_cost(name: str, cells: Sequence[Cell], model: Calibration) -> Cost:
    """The least squares of relative errors: the best serial cost for each hidden one tried."""
    samples = list(_samples(name, cells, model))
    most = max(0.0, min((each.step - each.compute) / each.hidden for each in samples))
    tried = (_best_serial(most * number / TRIES, samples) for number in range(TRIES + 1))
    return min(tried, key=lambda cost: _misfit(cost, samples))


def _best_serial(hidden: float, samples: Sequence[_Sample]) -> Cost:
    rest = [(each.step - each.compute - max(each.link, each.hidden * hidden), each)
            for each in samples]
    above = sum(left * each.serial / each.step**2 for left, each in rest)
    below = sum((each.serial / each.step) ** 2 for each in samples)
    return Cost(max(0.0, above / below), hidden)


def _misfit(cost: Cost, samples: Sequence[_Sample]) -> float:
    return sum(((each.compute + each.serial * cost.serial
                 + max(each.link, each.hidden * cost.hidden)) / each.step - 1) ** 2
               for each in samples)


def _errors(cells: Sequence[Cell], model: Calibration) -> dict[str, float]:
    """Twice the root mean square of the errors on cells that were left out, by variant.

    Half of it is the variant's own, half that of all: a few cells say little about one.
    """
    left_out: dict[str, list[float]] = {name: [] for name in variants(cells)}
    for cell in cells if len(cells) > 1 else []:
        others = [other for other in cells if other is not cell]
        blind = _fit(others, model.machine, model.batch, model.latency)
        for name, error in relative_errors(blind, [cell]).items():
            left_out[name].append(error)
    everybody = [error for each in left_out.values() for error in each]
    return {name: max(LEAST_ERROR, 2 * sqrt((_square(each or everybody) + _square(everybody)) / 2))
            for name, each in left_out.items()}


def _square(errors: Sequence[float]) -> float:
    return fmean(error**2 for error in errors) if errors else 0.0


def relative_errors(model: Calibration, cells: Sequence[Cell]) -> dict[str, float]:
    """By variant that the model knows, the largest error on these cells: (predicted - measured) /
    measured, with its sign."""
    found: dict[str, float] = {}
    for cell in cells:
        for name in (COMPUTE_ONLY, *model.costs):
            if name in cell["variants"]:
                error = model.seconds(name, cell["nodes"], model.link(
                    payload_rate(cell["rate"]))) / measured(cell, name) - 1
                found[name] = max(found.get(name, 0.0), error, key=abs)
    return found
