#!/usr/bin/env python3
"""All that can be tested and measured on a machine with a GPU, in a few minutes.

    python3 benchmarks/gpu_check.py --data-dir ~/cifar10 --minutes 10
    python3 benchmarks/gpu_check.py --pretend            # the same steps on a CPU, tiny

Runs the steps of gpu_checks/rows.py. One that fails, or takes too long, is written down and does
not end the rest; one that needs what is not here says so. Leaves docs/results/gpu_NAME.json and
.md, prints the latter, and ends with exit code 1 if a step failed. Pretended, nothing is measured,
and results go to a temporary folder unless --output names one.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.gpu_checks.report import hardware, write
from benchmarks.gpu_checks.rows import GpuCheck, GpuMachine, rows
from benchmarks.gpu_checks.running import GpuResult, run_row
from common.cluster.devices import count_gpus
from common.cluster.program import run_program
from common.core.failures import UsageError
from common.options.flag_parser import SentenceParser

LIMITS_FOR = 10  # minutes, for which the rows' seconds are meant
PRETENDING = {"TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def check(table: Sequence[GpuCheck], minutes: float, is_pretended: bool = False) -> list[GpuResult]:
    """Runs every row, two at a time where nothing is measured, and returns how each ended."""
    deadline, longer = time.monotonic() + 60 * minutes, minutes / LIMITS_FOR
    environment = {}
    if is_pretended:  # beside other work, and its speed says nothing
        environment, longer = PRETENDING, 60.0
    with tempfile.TemporaryDirectory() as folder, \
            ThreadPoolExecutor(2 if is_pretended else 1) as pool:
        def run(numbered: tuple[int, GpuCheck]) -> GpuResult:
            number, row = numbered
            outcome = run_row(row, Path(folder) / str(number), longer, deadline, environment)
            print(f"{row.name}: {outcome.how} {outcome.last}", file=sys.stderr, flush=True)
            return outcome
        return list(pool.map(run, enumerate(table)))


def result_path(facts: dict[str, str], is_pretended: bool) -> Path:
    """Where results go: docs/results/gpu_NAME-OF-THE-GPU; pretended, a temporary folder."""
    if is_pretended:
        return Path(tempfile.mkdtemp()) / "gpu_pretended"
    name = re.sub(r"\W+", "-", facts["gpus"].partition(",")[0]).strip("-").lower()
    return ROOT / "docs/results" / f"gpu_{name}"


def main() -> None:
    parser = SentenceParser(description="Everything that a GPU can show, in minutes.")
    parser.add_argument("--minutes", type=float, default=LIMITS_FOR, help="in all (default: 10)")
    parser.add_argument("--data-dir", type=Path, default=Path("~/cifar10"))
    parser.add_argument("--pretend", action="store_true", help="on a CPU, tiny: measures nothing")
    parser.add_argument("--output", type=Path, metavar="PATH", help="write PATH.json and PATH.md")
    options = parser.parse_args()
    if not (count_gpus() or options.pretend):
        raise UsageError("there is no GPU here; --pretend goes through the same steps on the CPU")
    machine = GpuMachine(0 if options.pretend else count_gpus(), options.data_dir.expanduser(),
                      options.pretend)
    outcomes, facts = check(rows(machine), options.minutes, options.pretend), hardware()
    path = options.output or result_path(facts, options.pretend)
    print(write(outcomes, path, facts))
    print(f"written to {path}.json and {path}.md", file=sys.stderr)
    sys.exit(any(outcome.is_fault for outcome in outcomes))


if __name__ == "__main__":
    run_program(main)
