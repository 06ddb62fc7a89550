#!/usr/bin/env python3
"""Ranks strategies on your hosts, and says if the hosts pay. Give each the flags of the run:

    python3 scripts/choose_strategy.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0  (1, 2, 3 there)
    scripts/ssh_cluster.sh hosts.txt scripts/choose_strategy.py --data-dir ~/cifar10
    srun --ntasks 4 python3 scripts/choose_strategy.py --data-dir ~/cifar10

First the preflight: all must be well. Then each strategy trains for half a minute, in turns, with
the run's own data, model and batch. The leader ranks them, says whether the hosts beat one of them,
and keeps strategies.json in --output-dir, from which scripts/predict.py goes on. Nothing else is
left. Exit codes are the preflight's.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
from statistics import median
from typing import TYPE_CHECKING

from common.cluster.program import run_program
from common.core.failures import UsageError, writing
from common.core.provenance import processor
from common.options.command_line import parse_command_line
from common.options.flag_parser import SentenceParser
from common.settings.types import positive
from studies.choosing.ranking import (
    CANDIDATES,
    ranking,
    ranking_table,
    verdict,
    whether_hosts_pay,
)
from studies.prediction.grid import COMPUTE_ONLY, Cell, save_grid

if TYPE_CHECKING:
    from common.cluster.node import Node
    from common.preflight.findings import Findings

NAME = "strategies.json"


def main() -> None:
    options, rest = _parser().parse_known_args()
    settings, world = parse_command_line("Preflight", rest)
    if world.size == 1:
        raise UsageError("one host averages nothing: give --master-ip, --num-nodes and --rank, or "
                         "start this with torchrun, srun or scripts/ssh_cluster.sh")
    if settings.virtual_nodes:
        raise UsageError("the strategies are compared without --virtual-nodes: leave it out")
    from common.preflight.examine import Findings, examine

    findings = Findings(world, settings)
    cells: list[Cell] = []
    try:
        examine(findings, lambda node: cells.extend(measured(options, findings, node)))
    finally:
        if world.is_leader and findings.problems and findings.ranks:
            print_page(findings)
    if world.is_leader:
        tell(cells, findings)


def print_page(findings: "Findings") -> None:
    from common.preflight.page import page

    print(page(findings), flush=True)


def measured(options: argparse.Namespace, findings: "Findings", node: "Node") -> list[Cell]:
    """Every rank must call, after a preflight without a problem. Says how long it will take."""
    from common.setup import load_datasets
    from studies.choosing.hosts import measure_hosts

    settings = findings.settings
    if node.world.is_leader:
        print_page(findings)
        minutes = (len(options.strategies) + 2) * options.seconds / 60
        print(f"\nmeasuring {len(options.strategies)} strategies in turns: {minutes:.0f} minutes, "
              "more where links are slow", flush=True)
    train_set, _, _ = load_datasets(settings, node)
    return measure_hosts(options.strategies, settings, train_set, node, options.seconds)


def tell(cells: list[Cell], findings: "Findings") -> None:
    """Prints what was found, and keeps it. On the leader."""
    steps = {name: variant["steps"] for name, variant in cells[-1]["variants"].items()
             if name != COMPUTE_ONLY}
    places = ranking(steps)
    ranks, settings = findings.world.size, findings.settings
    print("\n" + ranking_table(places, settings.batch_size))
    print("\n" + verdict(places, ranks))
    machines = len({info.machine for info in findings.ranks})
    if len(cells) > 1:
        print(whether_hosts_pay(cells[0]["variants"][COMPUTE_ONLY]["steps"],
                                steps[places[0].name], ranks))
    for cell in cells:
        cell["rate"] = median_link(findings, "bandwidth")
    if machines < ranks:
        print(f"They share {machines} machine{'s' * (machines > 1)}: hosts of their own compute "
              "faster, so that averaging is a larger part of a step.")
    path = settings.output_dir / NAME
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_grid(path, {"made_on": made_on(findings), "cells": cells})
    print(f"For other numbers of hosts, or other links: python3 scripts/predict.py {path} "
          f"--nodes {2 * ranks} --rate 1gbit")


def median_link(findings: "Findings", what: str) -> float:
    """The median over all pairs of ranks: bytes a second, or seconds of a round trip."""
    return median(getattr(link, what) for row in findings.links for link in row if link.bandwidth)


def made_on(findings: "Findings") -> dict:
    """The conditions of the measurement that scripts/predict.py needs."""
    cores = findings.ranks[0].cores
    machines = len({info.machine for info in findings.ranks})
    here = sum(info.machine == findings.ranks[0].machine for info in findings.ranks)
    return {"processor": processor(), "cores": cores, "machines": machines,
            "threads": findings.settings.threads or max(1, cores // here),
            "precision": findings.settings.precision, "batch": findings.settings.batch_size,
            "latency": median_link(findings, "round_trip") / 2}


def _strategies(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(";"))
    unknown = [name for name in names if name not in CANDIDATES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {'; '.join(CANDIDATES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(
        description="Measures which strategy is the fastest on these hosts.", allow_abbrev=False,
        epilog="All other flags are those of the run: see PartTwo/main.py --help.")
    parser.add_argument("--seconds", type=positive, default=30.0, metavar="S",
                        help="of training for each strategy (default: 30)")
    parser.add_argument("--strategies", type=_strategies, default=CANDIDATES,
                        metavar="NAME[;NAME]", help="default: " + "; ".join(CANDIDATES))
    return parser


if __name__ == "__main__":
    run_program(main)
