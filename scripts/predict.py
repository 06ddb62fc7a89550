#!/usr/bin/env python3
"""Seconds a step before the cluster is built: which strategy here, and how many nodes pay?

    python3 scripts/predict.py docs/results/sync_grid.json --nodes 8 --rate 300mbit 1gbit
    python3 scripts/predict.py outputs/strategies.json --nodes 8 --rate 300mbit

Calibrates the model of studies/prediction/model.py on measured cells: on the file that
benchmarks/sync.py wrote, or scripts/choose_strategy.py on your hosts. With --calibrate-on 4:1gbit
2:none it uses these cells alone, and says how far off it is on the rest. Predictions are for nodes
with processors of their own; --shared-processors is for hosts in one box.

Exit codes: 0 done, 2 usage, 4 a file that holds no measurements.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, [])  # any Python predicts

from common.cluster.program import run_program
from common.core.failures import UsageError, reading
from common.options.flag_parser import FlagParser
from common.settings.types import count
from studies.prediction.calibration import checks
from studies.prediction.fitting import calibrate
from studies.prediction.forms import payload_rate
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


def main() -> None:
    options = _parser().parse_args()
    for rate in options.rate:
        payload_rate(rate)
    with reading(str(options.cells)):
        source = read_source(options.cells)
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


def _parser() -> FlagParser:
    title, _, rest = __doc__.partition("\n")
    parser = FlagParser("scripts/predict.py", title, rest)
    parser.add_argument("cells", type=Path, metavar="FILE", help="what benchmarks/sync.py or "
                        "scripts/choose_strategy.py wrote")
    parser.add_argument("--calibrate-on", nargs="+", default=[], metavar="NODES:RATE",
                        help="use these cells alone, and predict the rest (default: use all)")
    parser.add_argument("--nodes", nargs="+", type=count, metavar="N",
                        help="to predict (default: those of the cells)")
    parser.add_argument("--rate", nargs="+", default=[], metavar="RATE",
                        help="of every link: 300mbit, 1gbit, none (default: those of the cells)")
    parser.add_argument("--shared-processors", action="store_true",
                        help="the nodes share the processors on which the cells were measured, as "
                        "hosts in network namespaces do (default: each node has its own)")
    return parser


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
