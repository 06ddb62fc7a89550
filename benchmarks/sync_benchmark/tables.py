"""A cell of the grid as Markdown: times, and bytes three ways."""

from statistics import median

from studies.prediction.forms import Link
from studies.prediction.grid import COMPUTE_ONLY, Cell, exposed
from studies.prediction.model import STRATEGIES, Gradient
from studies.prediction.rates import payload_rate

MEGABYTE = 1e6


def bound(found: Cell, name: str) -> float:
    """Seconds in which the links can carry a variant's gradients, when nothing else takes time."""
    if name not in STRATEGIES:
        return 0.0
    strategy = STRATEGIES[name]
    return strategy.part * strategy.wire(
        _gradient(found), found["nodes"], Link(1 / payload_rate(found["rate"])))


def _gradient(found: Cell) -> Gradient:
    return Gradient(tuple(found["gradient_bytes"]), (1.0,) * len(found["gradient_bytes"]))


def busiest_bytes(found: Cell, name: str) -> float:
    """Bytes out of the busiest rank in theory: the root sends everybody a gradient, or a ring."""
    strategy, ranks = STRATEGIES[name], found["nodes"]
    times = ranks - 1 if name.startswith("gather-scatter") else 2 * (ranks - 1) / ranks
    return strategy.part * times * sum(found["gradient_bytes"])


def cell_table(found: Cell) -> str:
    """Step, exposed communication and bound, by variant; then the bytes."""
    count = len(found["variants"][COMPUTE_ONLY]["steps"])
    lines = [f"\n{found['nodes']} nodes, {found['rate']}, n = {count} turns each\n",
             "| variant | step, s | least to most | exposed, s | bound, s | alone, s |",
             "|---|--:|--:|--:|--:|--:|"]
    for name, row in found["variants"].items():
        steps = row["steps"]
        by_itself = f"{median(row['alone']):.3f}" if row["alone"] else ""
        lines.append(f"| {name} | {median(steps):.3f} | {min(steps):.3f} to {max(steps):.3f} | "
                     f"{exposed(found, name):.3f} | {bound(found, name):.3f} | {by_itself} |")
    return "\n".join([*lines, "", bytes_table(found)])


def bytes_table(found: Cell) -> str:
    """MB that the busiest rank sends a step: theory, our count, the interface's without headers.

    Then how far the interface is from our count, and the root's share of what all ranks send.
    """
    lines = ["| variant | theory, MB | counted | interface | interface, headers too | "
             "interface to counted | root's share |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name in STRATEGIES:
        if name in found["variants"]:
            lines.append(f"| {name} | {busiest_bytes(found, name) / MEGABYTE:.1f} | "
                         + _counts(found["variants"][name]["bytes"]))
    return "\n".join(lines)


def _counts(ranks: list[dict[str, float]]) -> str:
    busiest = max(ranks, key=lambda rank: rank["counted"])
    counted, payload, wire = (busiest[name] for name in ("counted", "payload_sent", "wire"))
    share = ranks[0]["counted"] / sum(rank["counted"] for rank in ranks)
    return (f"{counted / MEGABYTE:.1f} | {payload / MEGABYTE:.1f} | {wire / MEGABYTE:.1f} | "
            f"{100 * (payload / counted - 1):+.1f} % | {100 * share:.0f} % |")


def largest_gap(cells: list[Cell]) -> tuple[float, str]:
    """The largest |interface / counted - 1| of any rank, strategy and cell, and where that was."""
    gaps = [(abs(rank["payload_sent"] / rank["counted"] - 1),
             f"{name}, rank {number} of {found['nodes']}, {found['rate']}")
            for found in cells for name, row in found["variants"].items()
            for number, rank in enumerate(row["bytes"]) if rank["counted"]]
    return max(gaps)
