"""Up to how many of the measured hosts one more pays, and what the turns leave open of it.

    scripts/ssh_cluster.sh hosts.txt scripts/choose_strategy.py --workload digits-vgg11

The model of scripts/predict.py is calibrated on one host and on all of them, at one rate. That says
what averaging adds to a step, but not how much of it is work while the link is idle, work during
the transfer, or congestion, and each grows in another way with the hosts. So the bounds hold all
these splits, and the spread of the rounds. More hosts than were measured are never spoken of, and
hosts that share a machine say nothing about hosts of their own. Imports no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, exp, floor, log
from statistics import fmean
from typing import Any, NamedTuple

from common.core.spread import half_interval
from studies.prediction.calibration import Calibration, measured
from studies.prediction.fitting import calibrate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.model import STRATEGIES, Cost, Machine, link_seconds
from studies.prediction.tables import stops_paying

SLOWDOWNS = (1.0, 1.25, 1.5)
PARTS_OVERLAPPED = (0.0, 0.5, 1.0)
ROUNDING = 1e-9  # of exp(log(4)), which is 4 hosts


class Paying(NamedTuple):
    """Each host more pays up to `hosts` of the `measured` ones, with `speed` samples a second then.

    It may as well be `low` to `high`.
    """

    hosts: int
    speed: float
    low: int
    high: int
    measured: int


def paying(name: str, cells: Sequence[Cell], made_on: dict[str, Any], latency: float) -> Paying:
    """Predicts how many hosts pay; `cells` are one host alone and all hosts, each its own machine.

    The interval of each bound comes from the rounds, whose turns share the machine's noise.
    """
    machine = Machine(made_on["cores"], made_on["machines"], made_on["threads"])

    def model(seen: Sequence[Cell]) -> Calibration:
        return calibrate(seen, machine, made_on["batch"], latency)

    rate, most = cells[0]["rate"], cells[-1]["nodes"]
    hosts, speed = stops_paying(model(cells), name, rate, most)
    logs = [[log(stops_paying(each, name, rate, most)[0])
             for each in _splits(model(seen), name, seen[-1])]
            for seen in _by_round(cells, name)]
    lows, highs = list(map(min, logs)), list(map(max, logs))
    low = exp(fmean(lows) - half_interval(lows)) + ROUNDING
    high = exp(min(fmean(highs) + half_interval(highs), log(most))) - ROUNDING
    return Paying(hosts, speed, min(hosts, max(1, floor(low))), max(hosts, ceil(high)), most)


def _by_round(cells: Sequence[Cell], name: str) -> Iterator[list[Cell]]:
    """The cells for each round alone, with one strategy."""
    for number in range(len(cells[0]["variants"][COMPUTE_ONLY]["steps"])):
        yield [{**cell, "variants": {
            each: {**variant, "steps": [variant["steps"][number]]}
            for each, variant in cell["variants"].items() if each in (COMPUTE_ONLY, name)}}
            for cell in cells]


def _splits(model: Calibration, name: str, cell: Cell) -> Iterator[Calibration]:
    """The model with every split of what the strategy adds to a step of the cell."""
    strategy, ranks = STRATEGIES[name], cell["nodes"]
    slower, compute = model.machine.oversubscription(ranks), model.compute(ranks)
    extra = max(0.0, measured(cell, name) - measured(cell, COMPUTE_ONLY))
    for slowdown in SLOWDOWNS:
        link = link_seconds(strategy, model.gradient, compute, ranks,
                            Cost(0, 0, slowdown).slowed(model.link(cell["rate"])))
        if slowdown > 1 and link > extra:  # more congestion than was measured
            break
        for part in PARTS_OVERLAPPED:
            serial = max(0.0, extra - max(link, part * extra))
            yield replace(model, costs={name: Cost(
                serial / strategy.serial(ranks, slower),
                part * extra / strategy.overlapped(ranks, slower), slowdown)})


def paying_in_words(name: str, limit: Paying) -> str:
    """A sentence on the hosts that pay, with bounds; never on more hosts than were measured."""
    if limit.hosts == 1:
        text = f"a second host does not pay with {name}"
    else:
        text = (f"each host more pays with {name} up to {'all ' * (limit.hosts == limit.measured)}"
                f"{limit.hosts} ({limit.speed:.0f} samples/s)")
    bounds = (f"the last that pays is {limit.low} to {limit.high} hosts" if limit.high > limit.low
              else "the same")
    more = ("; whether more than were measured would pay is not known"
            if limit.high == limit.measured else "")
    return (f"By the model of scripts/predict.py, calibrated on one and on {limit.measured} hosts, "
            f"{text}. Over the spread of the rounds, and over all that one number of hosts leaves "
            f"open in the model: {bounds}{more}.")
