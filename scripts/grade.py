"""Grades your own gradient averaging: says whether it is right, and what is wrong.

    python3 scripts/grade.py my_sync.py:MyAllReduce
    python3 scripts/grade.py submissions/*.py:MyAllReduce --bytes ring --json marks.json

A strategy is a class with a method average(gradients), or a function; see PartTwo/own_strategy.py.
It is run on 1, 2, 3 and 4 ranks of this machine and compared, in float64, with one rank. Each
mistake is told in one sentence, the gravest first: what is wrong, in which tensor, on which rank.

The code runs in processes of its own, with limits on time, memory, and on what it may write and
start. It may read whatever the user may who starts this: grade code that you do not trust in a
container.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
from collections.abc import Sequence
from typing import Any

from common.cluster.program import run_program
from common.core.failures import UsageError, writing
from common.core.visible import visible
from common.options.flag_parser import SentenceParser
from common.settings.user_code import Place

LONGER = 3  # times the seconds for a second try, as the machine may have been busy
BOUNDS = ("ring", "root", "none")
EPILOG = """Exit code: 0 when every strategy is right, 1 when one is wrong, 2 when one cannot be
used. A strategy that compresses gradients must declare how far it may be from the mean, as a share
of the largest gradient of each tensor, with an attribute: tolerance = 1e-2. It counts up to what
--tolerance allows."""


def main() -> None:
    options = _parser().parse_args()
    places = [place for text in options.strategies for place in places_of(text)]
    what = "1 strategy" if len(places) == 1 else f"{len(places)} strategies"
    _say(f"grading {what}: at most {options.seconds:g} s" + " each" * (len(places) > 1))
    # torch is imported only now: --help and a mistyped flag have been answered already
    from studies.grading import report
    from studies.grading.grading import grade_of
    from studies.proof.ranks import preload

    # the first optimiser of a process imports torch._dynamo, which takes longer than a scenario
    preload("torch._dynamo", "studies.grading.rank_under_test")
    grades = []
    for place in places:
        for seconds in (options.seconds, LONGER * options.seconds):
            grade = grade_of(place, options.bytes, seconds, tell=_say, tolerance=options.tolerance)
            if not grade.is_undecided:
                break
            _say(f"{grade.name}: not finished in {seconds:g} s")
        grades.append(grade)
        print(report.as_text(grade), flush=True)
    if len(grades) > 1:
        print(f"\n{report.as_list(grades)}", flush=True)
    for line in filter(None, map(without, options.strategies)):
        _say(line)
    if options.json:
        _write(options.json, [report.as_record(grade) for grade in grades])
    if options.gradescope:
        _write(options.gradescope, report.as_gradescope(grades))
    sys.exit(max(grade.exit_code for grade in grades))


def places_of(text: str) -> Sequence[Place]:
    """The places that FILE.py:NAME means; a * in FILE stands for several. Raises UsageError."""
    place = Place.parse(text)
    if place is None:
        raise UsageError(f"{text!r} is not of the form FILE.py:NAME")
    if "*" not in str(place.file):
        if not place.file.is_file():
            raise UsageError(f"there is no file {place.file}")
        return [place]
    files = _like(place.file)
    if not files:
        raise UsageError(f"no file is like {place.file}")
    return [Place(file, place.name) for file in files]


def without(text: str) -> str:
    """A line for each folder that the * of FILE.py:NAME stands for and that has no such file."""
    place = Place.parse(text)
    assert place is not None  # places_of has refused it
    folder, name = place.file.parent, place.file.name
    if "*" in name or "*" not in str(folder):
        return ""
    lacking = [each for each in _like(folder) if each.is_dir() and not (each / name).exists()]
    return "\n".join(visible(f"{each} has no {name}; of *.py it has "
                             + (", ".join(sorted(other.name for other in each.glob("*.py")))
                                or "none")) for each in lacking)


def _like(pattern: Path) -> list[Path]:
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _say(line: str) -> None:
    """Prints progress on standard error, so that verdicts can be piped."""
    print(line, file=sys.stderr, flush=True)


def _write(path: Path, content: Any) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(
        prog="scripts/grade.py", allow_abbrev=False, epilog=EPILOG,
        description="Says whether your own gradient averaging is right, and what is wrong. The "
        "code may read whatever you may: grade code that you do not trust in a container.")
    parser.add_argument("strategies", nargs="+", metavar="FILE.py:NAME",
                        help="a class with average(gradients), or a function; a * in FILE.py "
                        "stands for several files")
    parser.add_argument("--bytes", choices=BOUNDS, default="none",
                        help="the most that a rank may send, of the gradient's size G on N ranks: "
                        "ring, 2(N-1)/N G; root, (N-1) G, and 2(N-1) G for all ranks together "
                        "(default: none)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S",
                        help="stop grading a strategy after S seconds, and, where nothing else is "
                        f"known to be wrong, try once more with {LONGER} S (default: 60)")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="X",
                        help="the most that a strategy may declare as its tolerance (default: 0, "
                        "for exact means)")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="write all results to FILE, a list with one entry a strategy")
    parser.add_argument("--gradescope", type=Path, metavar="FILE",
                        help="write a results file for Gradescope (results.json)")
    return parser


if __name__ == "__main__":
    run_program(main)
