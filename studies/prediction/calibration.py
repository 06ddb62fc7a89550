"""The model with its constants: what studies/prediction/fitting.py finds, and what follows from it.

    python3 scripts/predict.py docs/results/sync_grid.json --nodes 8 --rate 300mbit
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import NamedTuple

from common.core.failures import UsageError
from studies.prediction.forms import LinkCost, payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.model import STRATEGIES, Compute, Cost, Gradient, Machine, exposed_seconds


class Prediction(NamedTuple):
    """Seconds of the median step, and half of its 95 % error bar, relative; None without one."""

    seconds: float
    error: float | None = None

    @property
    def low(self) -> float:
        """The lower end of the error bar; 0 without a bar."""
        return 0.0 if self.error is None else self.seconds * max(0.0, 1 - self.error)

    @property
    def high(self) -> float:
        return inf if self.error is None else self.seconds * (1 + self.error)

    @property
    def words(self) -> str:
        return f"{self.seconds:.3f}" + ("" if self.error is None else
                                        f" ± {self.seconds * self.error:.3f}")


@dataclass(frozen=True)
class Calibration:
    """The model with its constants: seconds, and bytes.

    A step alone takes fixed + image * images, of which `update` is the optimiser's; `backward` is
    backward's fraction of the rest. `errors` are half of the error bars, relative, by variant; None
    where the cells are not enough for one (studies/prediction/fitting.py). The cells had `measured`
    numbers of nodes, from least to most.
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
    errors: dict[str, float | None]
    measured: tuple[int, int]

    def compute(self, ranks: int) -> Compute:
        """The phases of a step on one of `ranks` ranks that averages nothing."""
        slowdown = self.machine.oversubscription(ranks)
        whole = slowdown * (self.fixed + self.image * self.batch / ranks)
        update = min(whole, slowdown * self.update)
        return Compute((whole - update) * (1 - self.backward), (whole - update) * self.backward,
                       update)

    def on_own_machines(self) -> "Calibration":
        """The same nodes, each with processors of its own."""
        return replace(self, machine=replace(self.machine, machines=None))

    def link(self, bytes_per_second: float) -> LinkCost:
        """The links of a rate, with the calibrated latency."""
        return LinkCost(1 / bytes_per_second, self.latency)

    def seconds(self, name: str, ranks: int, link: LinkCost) -> float:
        """Seconds of a step with the strategy `name`. Raises UsageError if it was not measured."""
        compute = self.compute(ranks)
        if name == COMPUTE_ONLY:
            return compute.seconds
        if name not in self.costs:
            raise UsageError(f"{name!r} was in none of the cells that the model is calibrated on")
        return compute.seconds + exposed_seconds(name, self.costs[name], self.gradient, compute,
                                                 ranks, link, self.machine)

    def predict(self, name: str, ranks: int, bytes_per_second: float) -> Prediction:
        """A step at a rate of payload, with its error bar between the measured numbers of nodes."""
        least, most = self.measured
        return Prediction(self.seconds(name, ranks, self.link(bytes_per_second)),
                          self.errors.get(name) if least <= ranks <= most else None)


def measured(cell: Cell, name: str) -> float:
    """The median step of a variant, in seconds."""
    return median(cell["variants"][name]["steps"])


def variants(cells: Sequence[Cell]) -> list[str]:
    """The measured variants that the model knows, compute first."""
    return [name for name in (COMPUTE_ONLY, *STRATEGIES)
            if any(name in cell["variants"] for cell in cells)]


class Check(NamedTuple):
    """A measured step of a cell that the model has not seen, beside the prediction."""

    nodes: int
    rate: str
    name: str
    measured: float
    predicted: Prediction

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.seconds / self.measured - 1

    @property
    def is_within_bar(self) -> bool:
        return self.predicted.low <= self.measured <= self.predicted.high


def checks(model: Calibration, unseen: Sequence[Cell]) -> list[Check]:
    """Checks every step of the unseen cells that the model can predict."""
    return [Check(cell["nodes"], str(cell["rate"]), name, measured(cell, name),
                  model.predict(name, cell["nodes"], payload_rate(cell["rate"])))
            for cell in unseen for name in variants([cell]) if name in (COMPUTE_ONLY, *model.costs)]
