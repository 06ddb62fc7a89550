#!/usr/bin/env python3
"""Seconds a step before the cluster is built: which strategy here, and how many nodes pay?

    python3 scripts/predict.py docs/results/sync_grid.json --nodes 8 --rate 300mbit 1gbit
    python3 scripts/predict.py outputs --preflight outputs/preflight.json --nodes 8 --rate 300mbit

Calibrates the model of studies/prediction/model.py on measured cells: on the file that
benchmarks/sync.py wrote, or on runs and the preflight.json of the cluster they ran on. With
--calibrate-on 4:1gbit 2:none it uses these cells alone, and says how far off it is on the rest.
Predictions are for nodes with processors of their own; --shared-processors is for hosts in one box.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__, ["numpy", "matplotlib"])

import argparse

from common.cluster.program import run_program
from common.core.failures import UsageError
from studies.prediction.calibration import Calibration
from studies.prediction.fitting import calibrate
from studies.prediction.flags import parse_flags
from studies.prediction.forms import Level, payload_rate
from studies.prediction.grid import Cell
from studies.prediction.simulation import growing, step_of
from studies.prediction.sources import Source, read_source
from studies.prediction.tables import (
    Check,
    bars_in_words,
    check_table,
    checks,
    processors_in_words,
    scaling_table,
    step_table,
    which_strategy,
)


def main() -> None:
    options = parse_flags()
    source = read_source(options.sources, options.preflight)
    seen, unseen = divide(source.cells, options.calibrate_on)
    model = calibrate(seen, source.machine, source.batch, source.latency)
    print(f"calibrated on {len(seen)} of {len(source.cells)} cells: {source.words}")
    found = checks(model, unseen)
    if found:
        print("\n" + check_table(found))
    print("\n" + bars_in_words(model, seen))
    print(processors_in_words(source.machine, options.shared_processors))
    if not options.shared_processors:
        model = model.on_own_machines()
    _answer(model, source, options)
    _draw(model, found, options)


def _answer(model: Calibration, source: Source, options: argparse.Namespace) -> None:
    """Steps by strategy and rate, which to take, and how many nodes pay."""
    rates = options.rate or list(dict.fromkeys(cell["rate"] for cell in source.cells))
    for ranks in options.nodes or sorted({cell["nodes"] for cell in source.cells}):
        print("\n" + step_table(model, ranks, rates))
        print("\n" + "\n".join(which_strategy(model, ranks, rate) for rate in rates))
    print("\n" + scaling_table(model, rates))


def _draw(model: Calibration, found: list[Check], options: argparse.Namespace) -> None:
    """The figures that were asked for."""
    if options.figure and not found:
        raise UsageError("--figure shows cells that the model has not seen, and --calibrate-on "
                         "names them all: leave some out")
    if options.figure or options.simulate:
        from studies.prediction.figures import accuracy, scaling, write  # matplotlib takes a second

        if options.figure:
            write(accuracy(found), options.figure)
        if options.simulate:
            levels = [Level(size, model.link(payload_rate(rate))) for size, rate in options.levels]
            write(scaling(growing(levels), step_of(model)), options.simulate)


def divide(cells: list[Cell], wanted: list[str]) -> tuple[list[Cell], list[Cell]]:
    """(the cells named, the rest); all and none when none is named."""
    if not wanted:
        return cells, []
    names = {f"{cell['nodes']}:{cell['rate']}": cell for cell in cells}
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UsageError(f"there is no cell {missing[0]}; there are: {', '.join(names)}")
    return ([names[name] for name in wanted],
            [cell for name, cell in names.items() if name not in wanted])


if __name__ == "__main__":
    run_program(main)
