"""A cell of the grid as Markdown."""

from statistics import median

from common.core.markdown import markdown_table
from studies.prediction.forms import LinkCost, payload_rate
from studies.prediction.grid import COMPUTE_ONLY, Cell, exposed
from studies.prediction.model import STRATEGIES, Gradient


def bound(cell: Cell, name: str) -> float:
    """Seconds in which the links can carry a variant's gradients, when nothing else takes time."""
    if name not in STRATEGIES:
        return 0.0
    strategy = STRATEGIES[name]
    sizes = tuple(cell["gradient_bytes"])
    return strategy.part * strategy.wire(Gradient(sizes, (1.0,) * len(sizes)), cell["nodes"],
                                         LinkCost(1 / payload_rate(cell["rate"])))


def cell_table(cell: Cell) -> str:
    """Step, exposed communication and bound, by variant."""
    count = len(cell["variants"][COMPUTE_ONLY]["steps"])
    rows = []
    for name, row in cell["variants"].items():
        steps = row["steps"]
        rows.append((name, f"{median(steps):.3f}", f"{min(steps):.3f} to {max(steps):.3f}",
                     f"{exposed(cell, name):.3f}", f"{bound(cell, name):.3f}"))
    head = ("variant", "step, s", "least to most", "exposed, s", "bound, s")
    return (f"\n{cell['nodes']} nodes, {cell['rate']}, n = {count} turns each\n\n"
            f"{markdown_table(head, rows)}")
