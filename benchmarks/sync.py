#!/usr/bin/env python3
"""Seconds a step for every way to average gradients: by nodes and rate, in network namespaces.

    python3 benchmarks/sync.py --json sync.json                   # root; needs a quiet machine
    python3 benchmarks/sync.py --rates 1gbit --nodes 4 --precision bf16

In each cell (nodes x rate) all variants take turns in one process group, so that ratios within a
cell hold on a noisy machine: VGG-11, global batch 256, random images. In a turn steps follow one
another as in training; each counts as long as the slowest rank takes, on average. Prints Markdown:
the median step, its smallest and largest, what of it is exposed communication (step minus the
compute-only step) and the bound. With --json each cell is kept as soon as it is measured, and a
second call goes on with those that are missing; scripts/predict.py calibrates itself there.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
import os
import platform
import tempfile

from benchmarks.programs import run_to_end
from benchmarks.sync_tables import cell_table
from common.cluster.program import run_program
from common.core.failures import UsageError
from common.core.provenance import processor
from common.options.flag_parser import SentenceParser
from studies.prediction.grid import COMPUTE_ONLY, Cell, open_grid, save_grid
from studies.prediction.model import STRATEGIES

WORKER = "studies/choosing/worker.py"
DEFAULT = (COMPUTE_ONLY, *STRATEGIES)
BATCH = 256


def run_cell(nodes: int, rate: str, options: argparse.Namespace) -> Cell:
    """Measures one cell. Raises DataError with the last line when a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "cell.json"
        flags = ["--rounds", str(options.rounds), "--steps", str(options.steps),
                 "--output", str(output), "--variants", json.dumps(options.variants),
                 "--precision", options.precision, "--threads", str(options.threads),
                 "--batch-size", str(BATCH), "--learning-rate", "0.01",  # labels are random
                 "--timeout", "300"]
        print(f"running {nodes} nodes at {rate}", file=sys.stderr, flush=True)
        run_to_end([ROOT / "scripts" / "namespace_cluster.sh", "-n", str(nodes), "-r", rate,
                    sys.executable, WORKER, "--master-ip", "{master}", "--num-nodes", "{nodes}",
                    "--rank", "{rank}", *flags], f"the run on {nodes} nodes at {rate}")
        return {**json.loads(output.read_text()), "rate": rate}


def made_on(options: argparse.Namespace) -> dict:
    """The conditions that all cells of a grid must share."""
    return {"processor": processor(), "cores": os.cpu_count(), "machines": 1,
            "precision": options.precision, "threads": options.threads,
            "variants": options.variants, "batch": BATCH, "python": platform.python_version()}


def main() -> None:
    options = _parser().parse_args()
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root")
    if COMPUTE_ONLY not in options.variants:
        raise UsageError(f"--variants needs {COMPUTE_ONLY!r}, which all others are compared with")
    grid = open_grid(options.json, made_on(options))
    done = {(record["nodes"], record["rate"]): record for record in grid["cells"]}
    for nodes, rate in ((nodes, rate) for nodes in options.nodes for rate in options.rates):
        record = done.get((nodes, rate))
        if record is None:
            record = run_cell(nodes, rate, options)
            grid["cells"].append(record)
            save_grid(options.json, grid)
        print(cell_table(record), flush=True)
    print("\n" + ", ".join(f"{name} {value}" for name, value in grid["made_on"].items()
                           if name != "variants"))


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(description="Seconds a step by strategy, nodes and rate.")
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "300mbit", "1gbit", "none"])
    parser.add_argument("--rounds", type=int, default=3, help="each gives every variant a turn")
    parser.add_argument("--steps", type=int, default=2, help="of one turn")
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--variants", nargs="+", metavar="NAME", default=list(DEFAULT))
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="keep every cell there, and skip those it has")
    return parser


if __name__ == "__main__":
    run_program(main)
