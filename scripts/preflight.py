#!/usr/bin/env python3
"""Checks a cluster before a run. Give every node the flags of the run:

    python3 scripts/preflight.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0    (1, 2, 3 elsewhere)

The leader prints one page. It ends in "ready", or in the first thing to fix, within --timeout
seconds (default: 60, of which half is for all ranks to join). Every rank exits alike: 0 ready,
2 usage, 3 ranks disagree, 4 data, 75 a rank or a link is missing, broken or far too slow.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

from common.cluster.program import run_program
from common.options.command_line import parse_command_line


def main() -> None:
    settings, world = parse_command_line("Preflight")
    from common.preflight.examine import Findings, examine
    from common.preflight.page import page

    findings = Findings(world, settings)
    try:
        examine(findings)
    finally:
        if world.is_leader and findings.ranks:
            print(page(findings), flush=True)


if __name__ == "__main__":
    run_program(main)
