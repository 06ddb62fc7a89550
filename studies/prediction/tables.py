"""The model's predictions in lines of text: steps by strategy and rate, and conclusions."""

from collections.abc import Sequence
from statistics import median

from common.core.markdown import markdown_table
from studies.prediction.calibration import Calibration, Check
from studies.prediction.fitting import LEAST_CELLS
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell
from studies.prediction.model import Machine

NO_BAR = "not enough data for an error bar"

def check_table(checked: Sequence[Check]) -> str:
    """Markdown: measured and predicted seconds of each unseen step, then the errors in a line."""
    rows = [(f"{each.nodes}, {each.rate}", each.name, f"{each.measured:.3f}", each.predicted.words,
             f"{100 * each.error:+.1f} %") for each in checked]
    head = ("nodes, rate", "strategy", "measured, s", "predicted, s", "error")
    return f"{markdown_table(head, rows, texts=2)}\n\n{errors_in_words(checked)}"


def errors_in_words(checked: Sequence[Check]) -> str:
    """The median and the worst error, and how many of those with an error bar lie within it."""
    worst = max(checked, key=lambda each: abs(each.error))
    barred = [each for each in checked if each.predicted.error is not None]
    within = (f"{sum(each.is_within_bar for each in barred)} of the {len(barred)} with an error "
              "bar within it" if barred else NO_BAR)
    middle = median(abs(each.error) for each in checked)
    return (f"{len(checked)} steps of unseen cells: error {100 * middle:.1f} % in the median, "
            f"{100 * abs(worst.error):.1f} % at worst ({worst.name}, {worst.nodes} nodes, "
            f"{worst.rate}); {within}")


def step_table(model: Calibration, ranks: int, rates: Sequence[str | float]) -> str:
    """Markdown: predicted seconds of a step by strategy and rate, best at the first rate first."""
    names = [COMPUTE_ONLY, *sorted(model.costs, key=lambda name: model.predict(
        name, ranks, payload_rate(rates[0])).seconds)]
    rows = [(name, *(model.predict(name, ranks, payload_rate(rate)).words for rate in rates))
            for name in names]
    return markdown_table((f"{ranks} nodes, seconds a step", *map(rate_in_words, rates)), rows)


def rate_in_words(rate: str | float) -> str:
    """A rate as it was given; a measured one in Mbit/s."""
    return rate if isinstance(rate, str) else f"{rate * 8 / 1e6:.0f} Mbit/s, measured"


def which_strategy(model: Calibration, ranks: int, rate: str | float) -> str:
    """Names the fastest strategy, and those that the error bars cannot tell from it."""
    steps = [(name, model.predict(name, ranks, payload_rate(rate))) for name in model.costs]
    (best, seconds), *others = sorted(steps, key=lambda each: each[1].seconds)
    text = f"{ranks} nodes, {rate_in_words(rate)}: {best}, {seconds.seconds:.3f} s a step "
    if seconds.error is None:
        return text + f"({why_no_bar(model, best, ranks)})"
    equal = [name for name, each in others if each.error is not None and each.low <= seconds.high]
    text += f"({seconds.low:.3f} to {seconds.high:.3f})"
    return text + (f"; {', '.join(equal)}: as fast within the error" if equal else "")


def why_no_bar(model: Calibration, name: str, ranks: int) -> str:
    """The reason why a prediction has no error bar."""
    least, most = model.measured
    if model.errors.get(name) is None or least <= ranks <= most:
        return NO_BAR
    return f"{least} to {most} nodes were measured: no error bar"


def bars_in_words(model: Calibration, cells: Sequence[Cell]) -> str:
    """Explains the error bars, or why they are absent."""
    least, most = model.measured
    if all(error is None for error in model.errors.values()):
        return (f"{NO_BAR}: that takes {LEAST_CELLS} cells (numbers of nodes, or rates), and here "
                f"{len(cells)} calibrate{'s' * (len(cells) == 1)}")
    return ("±: 95 % error bars of the median step, as wide as held 95 % of the errors when each "
            f"of the {len(cells)} cells was left out once; they hold for {least} to {most} nodes, "
            "which were measured, and there is none for others")


def processors_in_words(machine: Machine, shared: bool) -> str:
    """Says for which nodes the predictions are."""
    cores = f"{machine.cores} cores"
    if shared:
        return (f"nodes: hosts that share {machine.machines} machine"
                f"{'s' * (machine.machines != 1)} of {cores}, as the measured ones did")
    return (f"nodes: each with processors of its own, {machine.threads} "
            f"thread{'s' * (machine.threads > 1)} a rank; for hosts that share the measured "
            f"machine's {cores} add --shared-processors")


def stops_paying(model: Calibration, name: str, rate: float, most: int) -> tuple[int, float]:
    """(nodes, images a second): the number of nodes after which one more makes steps no shorter.

    The global batch stays the same, so a node more takes work from the others and adds to the
    averaging; counted from one node to the first that does not pay, or to `most`.
    """
    seconds = model.predict(name, 1, rate).seconds
    for ranks in range(2, most + 1):
        more = model.predict(name, ranks, rate).seconds
        if more >= seconds:
            return ranks - 1, model.batch / seconds
        seconds = more
    return most, model.batch / seconds


def scaling_table(model: Calibration, rates: Sequence[str | float]) -> str:
    """Markdown: by strategy and rate, up to how many nodes another one pays, and the speed there.

    No further than was measured. A first node more may cost more than it brings although the third
    would pay: that stands as 1.
    """
    most, rows = model.measured[1], []
    for name in model.costs:
        paying = [stops_paying(model, name, payload_rate(rate), most) for rate in rates]
        rows.append((name, *(f"{'all ' * (ranks == most)}{ranks} node{'s' * (ranks > 1)}, "
                             f"{speed:.0f} images/s" for ranks, speed in paying)))
    table = markdown_table(("another node pays up to", *map(rate_in_words, rates)), rows)
    return f"{table}\n\n{limits_in_words(model)}"


def limits_in_words(model: Calibration) -> str:
    """Says how far measurements support the number of nodes that pay."""
    least, most = model.measured
    one = "" if least == 1 else " One node was not measured; its step is computed from theirs."
    return (f"{most} nodes are the most that were measured: whether more than \"all {most}\" pay "
            f"is not known.{one}")
