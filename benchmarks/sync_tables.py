"""A cell of the grid as Markdown: times, and bytes three ways."""

from statistics import median

from common.core.markdown import markdown_table
from studies.prediction.forms import Link, payload_rate, sent
from studies.prediction.grid import COMPUTE_ONLY, Cell, exposed
from studies.prediction.model import STRATEGIES, Gradient

MEGABYTE = 1e6


def bound(found: Cell, name: str) -> float:
    """Seconds in which the links can carry a variant's gradients, when nothing else takes time."""
    if name not in STRATEGIES:
        return 0.0
    strategy = STRATEGIES[name]
    sizes = tuple(found["gradient_bytes"])
    return strategy.part * strategy.wire(Gradient(sizes, (1.0,) * len(sizes)), found["nodes"],
                                         Link(1 / payload_rate(found["rate"])))


def cell_table(found: Cell) -> str:
    """Step, exposed communication and bound, by variant; then the bytes."""
    count = len(found["variants"][COMPUTE_ONLY]["steps"])
    rows = []
    for name, row in found["variants"].items():
        steps = row["steps"]
        rows.append((name, f"{median(steps):.3f}", f"{min(steps):.3f} to {max(steps):.3f}",
                     f"{exposed(found, name):.3f}", f"{bound(found, name):.3f}"))
    head = ("variant", "step, s", "least to most", "exposed, s", "bound, s")
    return (f"\n{found['nodes']} nodes, {found['rate']}, n = {count} turns each\n\n"
            f"{markdown_table(head, rows)}\n\n{bytes_table(found)}")


def bytes_table(found: Cell) -> str:
    """MB that the busiest rank sends a step: theory, our count, the interface's without headers.

    Then how far the interface is from our count, and the root's fraction of what all ranks send.
    """
    size = sum(found["gradient_bytes"])
    rows = [(name, f"{STRATEGIES[name].part * size * sent(name, found['nodes']) / MEGABYTE:.1f}",
             *_counts(found["variants"][name]["bytes"]))
            for name in STRATEGIES if name in found["variants"]]
    return markdown_table(("variant", "theory, MB", "counted", "interface",
                           "interface, headers too", "interface to counted", "root's share"), rows)


def _counts(ranks: list[dict[str, float]]) -> tuple[str, ...]:
    busiest = max(ranks, key=lambda rank: rank["counted"])
    megabytes = [busiest[name] / MEGABYTE for name in ("counted", "payload_sent", "wire")]
    of_root = ranks[0]["counted"] / sum(rank["counted"] for rank in ranks)
    return (*(f"{each:.1f}" for each in megabytes),
            f"{100 * (megabytes[1] / megabytes[0] - 1):+.1f} %", f"{100 * of_root:.0f} %")


def largest_gap(cells: list[Cell]) -> tuple[float, str]:
    """The largest |interface / counted - 1| of any rank, strategy and cell, and where that was.

    Only of what counts: a user's own strategy need not, and where none does, (0.0, "nothing
    counted").
    """
    gaps = [(abs(rank["payload_sent"] / rank["counted"] - 1),
             f"{name}, rank {number} of {cell['nodes']}, {cell['rate']}")
            for cell in cells for name, row in cell["variants"].items()
            for number, rank in enumerate(row["bytes"]) if rank["counted"]]
    return max(gaps, default=(0.0, "nothing counted"))
