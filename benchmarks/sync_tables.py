"""A cell of the grid as Markdown: times, and bytes three ways."""

from statistics import median

from common.core.markdown import markdown_table
from studies.prediction.forms import LinkCost, payload_rate, sent
from studies.prediction.grid import COMPUTE_ONLY, Cell, exposed
from studies.prediction.model import STRATEGIES, Gradient

MEGABYTE = 1e6


def bound(cell: Cell, name: str) -> float:
    """Seconds in which the links can carry a variant's gradients, when nothing else takes time."""
    if name not in STRATEGIES:
        return 0.0
    strategy = STRATEGIES[name]
    sizes = tuple(cell["gradient_bytes"])
    return strategy.part * strategy.wire(Gradient(sizes, (1.0,) * len(sizes)), cell["nodes"],
                                         LinkCost(1 / payload_rate(cell["rate"])))


def cell_table(cell: Cell) -> str:
    """Step, exposed communication and bound, by variant; then the bytes."""
    count = len(cell["variants"][COMPUTE_ONLY]["steps"])
    rows = []
    for name, row in cell["variants"].items():
        steps = row["steps"]
        rows.append((name, f"{median(steps):.3f}", f"{min(steps):.3f} to {max(steps):.3f}",
                     f"{exposed(cell, name):.3f}", f"{bound(cell, name):.3f}"))
    head = ("variant", "step, s", "least to most", "exposed, s", "bound, s")
    return (f"\n{cell['nodes']} nodes, {cell['rate']}, n = {count} turns each\n\n"
            f"{markdown_table(head, rows)}\n\n{bytes_table(cell)}")


def bytes_table(cell: Cell) -> str:
    """MB that the busiest rank sends a step: theory, our count, the interface's without headers.

    Then how far the interface is from our count, and the root's fraction of what all ranks send.
    """
    size = sum(cell["gradient_bytes"])
    rows = [(name, f"{STRATEGIES[name].part * size * sent(name, cell['nodes']) / MEGABYTE:.1f}",
             *_counts(cell["variants"][name]["bytes"]))
            for name in STRATEGIES if name in cell["variants"]]
    return markdown_table(("variant", "theory, MB", "counted", "interface",
                           "interface, headers too", "interface to counted", "root's share"), rows)


def _counts(ranks: list[dict[str, float]]) -> tuple[str, ...]:
    busiest = max(ranks, key=lambda rank: rank["counted"])
    megabytes = [busiest[name] / MEGABYTE for name in ("counted", "payload_sent", "wire")]
    of_root = ranks[0]["counted"] / sum(rank["counted"] for rank in ranks)
    return (*(f"{each:.1f}" for each in megabytes),
            f"{100 * (megabytes[1] / megabytes[0] - 1):+.1f} %", f"{100 * of_root:.0f} %")


def largest_gap(cells: list[Cell]) -> tuple[float, str]:
    """The largest |interface / counted - 1| of any rank, strategy and cell, and its place.

    Strategies that do not count their bytes are skipped; if none counts, (0.0, "nothing counted").
    """
    gaps = [(abs(rank["payload_sent"] / rank["counted"] - 1),
             f"{name}, rank {number} of {cell['nodes']}, {cell['rate']}")
            for cell in cells for name, row in cell["variants"].items()
            for number, rank in enumerate(row["bytes"]) if rank["counted"]]
    return max(gaps, default=(0.0, "nothing counted"))
