"""Prints the state of runs, from their logs alone.

    python3 scripts/status.py outputs
    watch python3 scripts/status.py outputs

Ends with 0 when all runs are finished or going on, with a failed run's own exit code, and with 75
when one was killed on this machine, or has fallen silent: killed elsewhere, or its machine is gone.
On a page, with figures: scripts/compare.py outputs --watch.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, [])

import time

from common.cluster.program import run_program
from common.core.failures import reading
from common.options.flag_parser import SentenceParser
from common.reporting.recorded_run import find_runs
from common.reporting.run_state import describe


def main() -> None:
    parser = SentenceParser(description="Tells how runs are doing, from their logs.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT_DIR")
    folders = parser.parse_args().folders
    with reading(" or ".join(map(str, folders))):
        states = [describe(run, time.time()) for run in find_runs(folders)]
    print("\n".join(text for text, _ in states))
    sys.exit(max(code for _, code in states))


if __name__ == "__main__":
    run_program(main)
