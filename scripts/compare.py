"""Compares runs on one page: a self-contained HTML file, and the same as Markdown with figures.

    python3 scripts/compare.py outputs                          # writes outputs/comparison.html
    python3 scripts/compare.py outputs/two outputs/four --proof docs/proof_float64.json
    python3 scripts/compare.py outputs/quickstart --one-digest      # status 1 unless they have one
    python3 scripts/compare.py outputs --watch      # while runs go on: the page renews itself

Reads what the runs have logged (metrics_rankR.jsonl of every rank, found there and below, and their
traces), proof*.json beside them, and nothing else. The page needs no network, and can be read
without JavaScript.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, ["matplotlib", "jinja2"])

import argparse
from functools import partial
from typing import TYPE_CHECKING

from common.cluster.program import run_program
from common.core.failures import reading, writing
from common.options.flag_parser import SentenceParser
from common.reporting.live import watch
from common.reporting.recorded_run import RecordedRun, find_runs

if TYPE_CHECKING:
    from common.reporting.page import Page

NAME = "comparison"


def main() -> None:
    options = _parser().parse_args()
    output = options.output or options.folders[0]
    with reading(" or ".join(map(str, [*options.folders, *options.proof]))):
        if options.watch:
            _watch(options, output)
        runs = find_runs(options.folders)
        from common.reporting.digests import digests_as_text, have_one_digest

        if options.one_digest:
            print(digests_as_text(runs), end="\n\n")
        page = _write(options, output, runs)
        print(page.first_sentences(), page.timing_as_text(), sep="\n\n")
        print(f"\nthe comparison, to look at: {output / NAME}.html")
        sys.exit(options.one_digest and not have_one_digest(runs))


def _watch(options: argparse.Namespace, output: Path) -> None:
    """Writes the page again and again, until the runs have ended."""
    import common.reporting.page  # noqa: F401 (takes a while, and does not count as drawing)

    say = partial(print, flush=True)
    say(f"renewed while runs go on, and for a minute after: {output / NAME}.html")
    watch(options.folders, lambda runs, refresh: _write(options, output, runs, refresh), say)


def _write(options: argparse.Namespace, output: Path, runs: list[RecordedRun],
           refresh: int = 0) -> "Page":
    from common.reporting.page import Page  # matplotlib takes a second: mistakes come first

    beside = [path for folder in options.folders for path in sorted(folder.rglob("proof*.json"))]
    page = Page.of(runs, options.proof + beside)
    with writing(output):
        page.write(output, NAME, refresh)
    return page


def _parser() -> argparse.ArgumentParser:
    parser = SentenceParser(description="Compares runs on one page.", allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT_DIR",
                        help="where runs lie, one or many")
    parser.add_argument("--output", type=Path, metavar="DIR",
                        help="where to write (default: the first OUTPUT_DIR)")
    parser.add_argument("--proof", type=Path, action="append", default=[], metavar="FILE",
                        help="also show what scripts/prove.py wrote there (its .json)")
    parser.add_argument("--one-digest", action="store_true",
                        help="print each run's digest of its weights first, and end with status 1 "
                        "unless there are two or more, all equal")
    parser.add_argument("--watch", action="store_true",
                        help="write the page again while runs go on; it renews itself in the "
                        "browser. Ends a minute after the last run")
    return parser


if __name__ == "__main__":
    run_program(main)
