"""What the model says, in lines of text: steps by strategy and rate, and what follows from them."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from scripts.prediction.calibration import (
    COMPUTE_ONLY,
    Calibration,
    Cell,
    Prediction,
    measured,
    variants,
)
from scripts.prediction.rates import payload_rate


class Check(NamedTuple):
    """A measured step of a cell that the model has not seen, beside what it says of it."""

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
    """Every step of the unseen cells that the model can say something of."""
    return [Check(cell["nodes"], str(cell["rate"]), name, measured(cell, name),
                  model.predict(name, cell["nodes"], payload_rate(cell["rate"])))
            for cell in unseen for name in variants([cell]) if name in (COMPUTE_ONLY, *model.costs)]


def check_table(found: Sequence[Check]) -> str:
    """Markdown: measured and predicted seconds of each unseen step, then the errors in a line."""
    lines = ["| nodes, rate | strategy | measured, s | predicted, s | error |",
             "|---|---|--:|--:|--:|"]
    lines += [f"| {each.nodes}, {each.rate} | {each.name} | {each.measured:.3f} | "
              f"{each.predicted.seconds:.3f} ± {each.predicted.seconds * each.predicted.error:.3f} "
              f"| {100 * each.error:+.1f} % |" for each in found]
    return "\n".join([*lines, "", errors_in_words(found)])


def errors_in_words(found: Sequence[Check]) -> str:
    """The median and the worst error, and how many lie within their error bars."""
    worst = max(found, key=lambda each: abs(each.error))
    within = sum(each.is_within_bar for each in found)
    middle = median(abs(each.error) for each in found)
    return (f"{len(found)} steps of unseen cells: error {_percent(middle)} in the median, "
            f"{_percent(abs(worst.error))} at worst ({worst.name}, {worst.nodes} nodes, "
            f"{worst.rate}); {within} within their error bars")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def step_table(model: Calibration, ranks: int, rates: Sequence[str | float]) -> str:
    """Markdown: predicted seconds of a step by strategy and rate, best at the first rate first."""
    names = [COMPUTE_ONLY, *sorted(model.costs, key=lambda name: model.predict(
        name, ranks, payload_rate(rates[0])).seconds)]
    lines = [f"| {ranks} nodes, seconds a step | {' | '.join(map(rate_in_words, rates))} |",
             "|---" + "|--:" * len(rates) + "|"]
    for name in names:
        cells = [model.predict(name, ranks, payload_rate(rate)) for rate in rates]
        lines.append(f"| {name} | " + " | ".join(
            f"{each.seconds:.3f} ± {each.seconds * each.error:.3f}" for each in cells) + " |")
    return "\n".join(lines)


def rate_in_words(rate: str | float) -> str:
    """As it was given; a measured one in Mbit/s."""
    return rate if isinstance(rate, str) else f"{rate * 8 / 1e6:.0f} Mbit/s, measured"


def fastest(model: Calibration, ranks: int, rate: float) -> list[tuple[str, Prediction]]:
    """Every strategy at a rate of payload, the fastest first."""
    found = [(name, model.predict(name, ranks, rate)) for name in model.costs]
    return sorted(found, key=lambda each: each[1].seconds)


def which_strategy(model: Calibration, ranks: int, rate: str | float) -> str:
    """The fastest one, and those that the error bars cannot tell from it."""
    (best, seconds), *others = fastest(model, ranks, payload_rate(rate))
    equal = [name for name, each in others if each.low <= seconds.high]
    text = (f"{ranks} nodes, {rate_in_words(rate)}: {best}, {seconds.seconds:.3f} s a step "
            f"({seconds.low:.3f} to {seconds.high:.3f})")
    return text + (f"; {', '.join(equal)}: as fast within the error" if equal else "")


def stops_paying(model: Calibration, name: str, rate: float) -> tuple[int, float]:
    """(nodes, images a second): the number of nodes after which one more makes steps no shorter.

    The global batch stays the same, so a node more takes work from the others and adds to the
    averaging; counted from one node up to one an image, to the first that does not pay.
    """
    seconds = model.predict(name, 1, rate).seconds
    for ranks in range(2, model.batch + 1):
        more = model.predict(name, ranks, rate).seconds
        if more >= seconds:
            return ranks - 1, model.batch / seconds
        seconds = more
    return model.batch, model.batch / seconds


def scaling_table(model: Calibration, rates: Sequence[str | float]) -> str:
    """Markdown: by strategy and rate, up to how many nodes another one pays, and the speed there.

    A first node more may cost more than it brings although the third would pay: that stands as 1.
    """
    lines = [f"| another node pays up to | {' | '.join(map(rate_in_words, rates))} |",
             "|---" + "|--:" * len(rates) + "|"]
    for name in model.costs:
        found = [stops_paying(model, name, payload_rate(rate)) for rate in rates]
        lines.append(f"| {name} | " + " | ".join(
            f"{ranks} node{'s' * (ranks > 1)}, {speed:.0f} images/s"
            for ranks, speed in found) + " |")
    return "\n".join(lines)
