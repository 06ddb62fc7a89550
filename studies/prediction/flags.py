"""The flags of scripts/predict.py."""

import argparse
from math import prod
from pathlib import Path

from common.core.failures import UsageError
from common.core.setting_types import count
from common.options.flag_parser import FlagParser
from studies.prediction.forms import payload_rate

MOST_RANKS = 1 << 14
EXAMPLES = """examples:
  python3 scripts/predict.py docs/results/sync_grid.json --nodes 8 --rate 300mbit 1gbit
  python3 scripts/predict.py outputs --preflight outputs/preflight.json --nodes 8 --rate 300mbit
  python3 scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:1gbit 4:none 2:none
exit codes: 0 done, 2 usage, 4 a file or folder that holds no measurements"""


def parse_flags() -> argparse.Namespace:
    """What the command line says. Raises UsageError, in one sentence, for what cannot be meant."""
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
