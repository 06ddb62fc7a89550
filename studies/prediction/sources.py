"""Measured cells for the model, out of the file of benchmarks/sync.py or choose_strategy.py.

    python3 scripts/predict.py outputs/strategies.json --nodes 8 --rate 300mbit
"""

from pathlib import Path
from typing import NamedTuple

from studies.prediction.grid import Cell, load_grid
from studies.prediction.model import Machine

BOX_LATENCY = 15e-6  # half a round trip between two namespaces, in seconds


class Source(NamedTuple):
    """The cells that the model is calibrated on, and the conditions of their measurement."""

    cells: list[Cell]
    machine: Machine
    batch: int
    latency: float
    words: str


def read_source(path: Path) -> Source:
    """The cells in a file. Raises DataError for any other file."""
    grid = load_grid(path)
    made_on = grid["made_on"]
    machine = Machine(made_on["cores"], made_on["machines"], made_on["threads"])
    words = (f"{path.name}, {made_on['processor']}, {made_on['cores']} cores for all nodes, "
             f"{made_on['precision']}")
    return Source(grid["cells"], machine, made_on["batch"],
                  made_on.get("latency", BOX_LATENCY), words)
