#!/usr/bin/env python3
"""Collects all that a maintainer asks about a run that went wrong, in one text file.

    python3 scripts/report_problem.py outputs        # writes outputs/problem.txt

Versions, facts of this node, and of each run there and below: settings, the last lines of its logs,
its metrics. Of the environment it has only what launchers and libraries go by; names and addresses
of hosts are in it, and what the ranks printed. Read the file, answer the two questions at its top,
and attach it to your report.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
from dataclasses import asdict
from typing import Any

from common.cluster.addresses import choose_interface, interface_addresses
from common.cluster.program import run_program
from common.core.failures import PeerLost, first_line, writing
from common.options.flag_parser import SentenceParser
from common.reporting.problem import problem_report

ANYWHERE = "192.0.2.1"  # reserved for examples: only the route there is looked up, nothing is sent
NAME = "problem.txt"


def main() -> None:
    options = _parser().parse_args()
    text = problem_report([options.folder], node_facts(options.folder))
    output = options.output or options.folder / NAME
    with writing(output):
        output.write_text(text)
    print(f"wrote {output} ({len(text) / 1000:.0f} KB). Names and addresses of hosts are in it, "
          "and the last lines that the ranks printed: read it before you send it.")


def node_facts(folder: Path) -> dict[str, Any]:
    """The facts that a preflight reports of this node; if torch cannot be imported, the error."""
    try:
        interface, address = choose_interface(None, ANYWHERE, 9)
    except PeerLost:
        interface, address = choose_interface(None, "127.0.0.1", 9)
    known = {"interface": interface, "address": address, "interfaces": interface_addresses()}
    try:
        from common.core.provenance import instruction_sets
        from common.preflight.node_facts import NodeFacts

        facts = asdict(NodeFacts.of_this_node(0, folder, interface))
        return {**known, **facts, "instructions": instruction_sets()}
    except Exception as error:  # whatever a broken installation raises is what is to be told
        return {**known, "torch": f"{type(error).__name__}: {first_line(error)}"}


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(description="Collects what a report of a problem needs.",
                                     allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs"), metavar="FOLDER",
                        help="where the run lies, or several (default: outputs)")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        help=f"where to write (default: {NAME} in FOLDER)")
    return parser


if __name__ == "__main__":
    run_program(main)
