"""Proves that N ranks learn what one rank learns, however their gradients are averaged.

    python3 scripts/prove.py --workload digits-vgg11 --batch-size 35 --steps 10 --samples 130

The same global batches go through one rank, and through every strategy and DDP on 1, 2, 3 and 4
local ranks, in float64 and float32, by the training loop of the three parts. Ends with status 0
when every difference is within its bound (see studies/proof/comparison.py), with 1 when one is not.
`--bits --virtual-nodes 4` allows no difference at all: see studies/proof/bits.py.
`--strategies local-sgd,diloco` measures how far these get away: they are other algorithms, "not
equivalent", and that fails nothing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from common.cluster.program import run_program
from common.core.failures import UsageError
from common.options.command_line import parse_command_line
from common.options.flag_parser import SentenceParser
from common.settings.resume import Resume
from common.settings.settings import LOCAL_SYNC_NAMES, SYNC_NAMES, Settings
from common.settings.strategies import VIRTUAL_SYNC_NAMES
from common.settings.types import Interval, count
from common.settings.user_code import Place, own_errors, require_distinct

if TYPE_CHECKING:
    from studies.proof.experiment import Case, Reference

PRECISIONS, TO_THE_BIT = ("float64", "float32"), ("float32", "bf16")
PASSES = (2, 4)
FLOAT64_LIMIT = 1e-9  # no float64 difference may be larger, whatever the bounds allow
SIZES = (1, 2, 3, 4)
STRATEGY_NAMES = (*SYNC_NAMES, "ddp")
EPILOG = """All flags of PartOne/main.py that say what is trained (--workload, --data-dir,
--batch-size, --learning-rate, --seed, ...) hold here too. A batch size that the numbers of ranks do
not divide, and a number of samples that it does not divide, put uneven shards and a short last
batch to the proof: 35 and 515, say."""


def _some_of(kind: Callable[[str], Any], known: Sequence[Any]) -> Callable[[str], tuple]:
    """A type for argparse: a list of known values, with commas."""
    def parse(text: str) -> tuple:
        try:
            chosen = tuple(kind(word) for word in text.split(","))
        except ValueError:
            chosen = (text,)
        unknown = [value for value in chosen
                   if value not in known and not Place.parse(str(value))]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of "
                                             f"{', '.join(map(str, known))}")
        return chosen
    return parse


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(prog="scripts/prove.py", epilog=EPILOG, allow_abbrev=False,
                            description="Proves that N ranks learn what one rank learns.")
    parser.add_argument("--steps", type=int, default=40, metavar="N",
                        help="iterations to compare (default: 40)")
    parser.add_argument("--samples", type=int, metavar="N",
                        help="thin the training set out to so many, evenly (default: all)")
    parser.add_argument("--sizes", type=_some_of(int, range(1, 17)),
                        metavar="N[,N]", help="numbers of ranks (default: 1,2,3,4, where there are "
                        "as many virtual nodes)")
    parser.add_argument("--strategies", type=_some_of(str, STRATEGY_NAMES + LOCAL_SYNC_NAMES),
                        default=STRATEGY_NAMES, metavar="NAME[,NAME]",
                        help="default: every one that averages gradients; FILE.py:NAME is "
                        "one of your own")
    parser.add_argument("--sync-every", type=count, default=5, metavar="H",
                        help="steps between synchronisations in local-sgd and diloco (default: 5)")
    parser.add_argument("--precisions", type=_some_of(str, (*PRECISIONS, "bf16")),
                        metavar="NAME[,NAME]",
                        help="default: float64,float32; with --bits float32,bf16")
    parser.add_argument("--batch-norm", choices=("synchronised", "frozen"), default="synchronised",
                        help="statistics that allow agreement: of the global batch, or constant; "
                        "the gap that each rank's own leave is measured beside the former")
    parser.add_argument("--bits", action="store_true",
                        help="compare to the last bit; requires --virtual-nodes V")
    parser.add_argument("--output", type=Path, metavar="PATH",
                        help="also write PATH.md and PATH.json")
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
    """This program's own flags, and the settings of the training. Raises UsageError."""
    options, rest = _parser().parse_known_args(arguments)
    require_distinct(options.strategies)
    settings, _ = parse_command_line("PartOne", rest)
    if options.steps < 1 or (options.samples or 1) < 1:
        raise UsageError("--steps and --samples must be at least 1")
    if options.bits != bool(settings.virtual_nodes):
        raise UsageError("--bits requires --virtual-nodes V, and the reverse: without virtual "
                         "nodes the number of ranks decides how sums are rounded")
    most = settings.virtual_nodes or SIZES[-1]
    options.sizes = options.sizes or tuple(size for size in SIZES if size <= most)
    _require_virtual_nodes_for(options, settings.virtual_nodes)
    batch_norm = "local" if options.bits else options.batch_norm
    return options, replace(settings, epochs=options.steps, max_iterations=options.steps,
                            batch_norm=batch_norm, resume=Resume(),
                            device="cuda" if settings.device == "cuda" else "cpu",
                            checkpoint_every=Interval())


def _require_virtual_nodes_for(options: argparse.Namespace, nodes: int | None) -> None:
    if nodes is None:
        return
    if not {*options.strategies} & {*VIRTUAL_SYNC_NAMES, "ddp"}:
        raise UsageError("none of the --strategies allows --virtual-nodes; these do: "
                         f"{', '.join((*VIRTUAL_SYNC_NAMES, 'ddp'))}")
    if max(options.sizes) > nodes:
        raise UsageError(f"--sizes: {max(options.sizes)} ranks need --virtual-nodes "
                         f"{max(options.sizes)} or more")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    options, settings = parse(sys.argv[1:])
    with own_errors(lambda error: False, workload=settings.workload):
        prove_all(options, settings)


def prove_all(options: argparse.Namespace, settings: Settings) -> None:
    """Compares in all precisions, prints the tables, and exits with the verdict."""
    # torch is imported only now: --help and a mistyped flag have been answered already
    from studies.proof.ranks import preload
    from studies.proof.report import conclusion, write_report

    # the first optimiser of a process imports torch._dynamo, which takes longer than a short run
    preload("torch._dynamo", "studies.proof.experiment")
    precisions = options.precisions or (TO_THE_BIT if options.bits else PRECISIONS)
    if options.bits:
        failed = [prove_bits(options, replace(settings, precision=each)) for each in precisions]
        _end(any(failed), options, settings)
    tables = []
    for precision in precisions:
        with tempfile.TemporaryDirectory() as folder:
            tables.append(prove(options, replace(settings, precision=precision), Path(folder)))
        if options.output:
            write_report(options.output, tables, sys.argv[1:])
    cases = [case for _, some in tables for case in some]
    print("\n" + conclusion(cases))
    _end(any(case.has_failed for case in cases), options, settings)


def _end(failed: bool, options: argparse.Namespace, settings: Settings) -> None:
    """Ends the program; after a failure it says first what in the model may be its cause."""
    from studies.proof.report import advice
    from studies.proof.trajectory import Problem

    text = advice(Problem(settings, options.samples)) if failed else ""
    if text:
        print(text)
    sys.exit(failed)


def prove(options: argparse.Namespace, settings: Settings,
          folder: Path) -> tuple["Reference", list["Case"]]:
    """Compares in one precision, and prints the table as it grows."""
    from studies.proof import experiment, report
    from studies.proof.strategies import chosen, local_strategies
    from studies.proof.trajectory import Problem

    limit = FLOAT64_LIMIT if settings.precision == "float64" else float("inf")
    problem = Problem(settings, options.samples)
    print(report.title(problem), flush=True)
    reference = experiment.create_reference(problem, folder / "reference.pt", limit)
    print(report.bounds(reference), flush=True)
    local = {name: strategy for name, strategy in local_strategies(options.sync_every).items()
             if name in options.strategies}
    cases = []
    for case in chain(experiment.judged(reference, chosen(options.strategies), options.sizes),
                      experiment.judged(reference, local, options.sizes, are_meant_to_agree=False),
                      experiment.accumulated(reference, PASSES),
                      experiment.local_statistics(reference, options.sizes)
                      if settings.batch_norm == "synchronised" else ()):
        print(report.row(case), flush=True)
        cases.append(case)
    return reference, cases


def prove_bits(options: argparse.Namespace, settings: Settings) -> bool:
    """Compares to the bit in one precision, and prints the table; whether any bit differs."""
    from studies.proof import bits
    from studies.proof.strategies import on_virtual_nodes
    from studies.proof.trajectory import Problem

    chosen = {name: strategy for name, strategy in on_virtual_nodes(settings).items()
              if name in options.strategies}
    with tempfile.TemporaryDirectory() as folder:
        problem = Problem(settings, options.samples)
        reference = bits.BitReference.create(problem, Path(folder) / "reference.pt")
        print(bits.title(reference), flush=True)
        cases = []
        for case in bits.compared(reference, chosen, options.sizes):
            print(bits.row(case), flush=True)
            cases.append(case)
    failed = sum(bool(case.why) for case in cases)
    print(f"\n{failed} of {len(cases)} trainings FAILED" if failed else
          f"\nall {len(cases)} trainings learned the bits that one rank learns")
    return bool(failed)


if __name__ == "__main__":
    run_program(main)
