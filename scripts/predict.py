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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

# Any Python predicts; a figure takes a package.
use_environment(__name__, ["matplotlib"] * any(
    word.startswith(("--figure", "--simulate")) for word in sys.argv[1:]))

import argparse
from math import prod

from common.cluster.program import run_program
from common.core.failures import UsageError, reading
from common.options.flag_parser import FlagParser
from common.settings.types import count
from studies.prediction.calibration import Calibration, Check, checks
from studies.prediction.fitting import calibrate
from studies.prediction.forms import Level, payload_rate
from studies.prediction.grid import Cell
from studies.prediction.sources import read_source
from studies.prediction.tables import (
    bars_in_words,
    check_table,
    processors_in_words,
    scaling_table,
    step_table,
    which_strategy,
)

MOST_RANKS = 1 << 14
EXAMPLES = """examples:
  python3 scripts/predict.py docs/results/sync_grid.json --nodes 8 --rate 300mbit 1gbit
  python3 scripts/predict.py outputs --preflight outputs/preflight.json --nodes 8 --rate 300mbit
  python3 scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:1gbit 4:none 2:none
exit codes: 0 done, 2 usage, 4 a file or folder that holds no measurements"""

def main() -> None:
    options = parse_flags()
    with reading(" or ".join(map(str, [*options.sources, *filter(None, [options.preflight])]))):
        predict(options)


def predict(options: argparse.Namespace) -> None:
    """Calibrates, predicts and prints, as `options` say."""
    source = read_source(options.sources, options.preflight)
    seen, unseen = divide(source.cells, options.calibrate_on)
    model = calibrate(seen, source.machine, source.batch, source.latency)
    print(f"calibrated on {len(seen)} of {len(source.cells)} cells: {source.words}")
    compared = checks(model, unseen)
    if compared:
        print("\n" + check_table(compared))
    print("\n" + bars_in_words(model, seen))
    print(processors_in_words(source.machine, options.shared_processors))
    if not options.shared_processors:
        model = model.on_own_machines()
    rates = options.rate or list(dict.fromkeys(cell["rate"] for cell in source.cells))
    for ranks in options.nodes or sorted({cell["nodes"] for cell in source.cells}):
        print("\n" + step_table(model, ranks, rates))
        print("\n" + "\n".join(which_strategy(model, ranks, rate) for rate in rates))
    print("\n" + scaling_table(model, rates))
    _draw(model, compared, options)


def parse_flags() -> argparse.Namespace:
    """Parses the command line. Raises UsageError, in one sentence, for what is not valid."""
    options = _parser().parse_args()
    for rate in options.rate:
        payload_rate(rate)
    if prod(size for size, _ in options.levels) not in range(4, MOST_RANKS + 1):
        raise UsageError(f"--levels must come to 4 to {MOST_RANKS} ranks, but "
                         f"{' x '.join(str(size) for size, _ in options.levels)} does not")
    if options.figure and not options.calibrate_on:
        raise UsageError("--figure shows cells that the model has not seen: say with "
                         "--calibrate-on which ones it may see")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser("scripts/predict.py", "Predicts seconds a step.", EXAMPLES)
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE|OUTPUT_DIR",
                        help="what benchmarks/sync.py wrote, or where runs lie")
    parser.add_argument("--preflight", type=Path, metavar="FILE",
                        help="of runs: what scripts/preflight.py wrote (default: preflight.json "
                        "in OUTPUT_DIR)")
    parser.add_argument("--calibrate-on", nargs="+", default=[], metavar="NODES:RATE",
                        help="use these cells alone, and predict the rest (default: use all)")
    parser.add_argument("--nodes", nargs="+", type=count, metavar="N",
                        help="to predict (default: those of the cells)")
    parser.add_argument("--rate", nargs="+", default=[], metavar="RATE",
                        help="of every link: 300mbit, 1gbit, none (default: those of the cells)")
    parser.add_argument("--shared-processors", action="store_true",
                        help="the nodes share the processors on which the cells were measured, as "
                        "hosts in network namespaces do (default: each node has its own)")
    parser.add_argument("--figure", type=Path, metavar="SVG",
                        help="draw predicted against measured steps of the unused cells")
    parser.add_argument("--simulate", type=Path, metavar="SVG",
                        help="draw the efficiency of 4 ranks and more, as simulated")
    parser.add_argument("--levels", nargs="+", type=_level, metavar="SIZE:RATE",
                        default=[(8, "100gbit"), (32, "10gbit"), (16, "10gbit")],
                        help="what to simulate: ranks of a node, nodes of a rack, racks, each with "
                        "the rate of its members' links (default: 8:100gbit 32:10gbit 16:10gbit)")
    return parser


def _level(text: str) -> tuple[int, str]:
    """SIZE:RATE of a level; the size is a power of two, so that clusters can double."""
    size, _, rate = text.partition(":")
    if not size.isdecimal() or int(size).bit_count() != 1:
        raise UsageError(f"{text!r} is no level: write SIZE:RATE, as 8:100gbit, with a size that "
                         "is a power of two")
    payload_rate(rate)
    return int(size), rate


def _draw(model: Calibration, compared: list[Check], options: argparse.Namespace) -> None:
    """Writes the figures that were asked for."""
    if options.figure and not compared:
        raise UsageError("--figure shows cells that the model has not seen, and --calibrate-on "
                         "names them all: leave some out")
    if options.figure or options.simulate:
        from studies.prediction.figures import accuracy, scaling, write  # take matplotlib and numpy
        from studies.prediction.simulation import growing, step_of

        if options.figure:
            write(accuracy(compared), options.figure)
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
