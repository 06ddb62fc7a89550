"""The page: sections of text, tables and figures, rendered twice from the same values."""

import base64
import hashlib
import os
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from common.core.trace_file import unpack_trace
from common.reporting import (
    confusion_figures,
    difference_figures,
    figures,
    proof_findings,
    tables,
    what_ran,
)
from common.reporting.figure_style import svg
from common.reporting.hover import Spot, spots
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import as_sentences, causes_of_differences, short, summary
from common.reporting.run_state import State, state_of
from common.reporting.tables import Proof, Runs, Table
from common.reporting.timeline import timeline
from common.reporting.travel import figure as travel_figure
from common.reporting.travel import travel
from common.reporting.what_ran import Commands

TERMINAL = 100  # columns
HERE = Path(__file__).parent
FIGURES = {**figures.FIGURES, "loss-differences": difference_figures.loss_differences,
           "confusion": confusion_figures.confusion,
           "confusion-differences": confusion_figures.differences}
# Nothing is fetched, and no script runs but ours, whatever the logs hold.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"


class Picture(NamedTuple):
    """A figure as SVG. `name` is a file's, `words` its title, its text alternative.

    `spots` are its values, for page.js; `width` and `height` are points.
    """

    name: str
    words: str
    svg: str
    spots: list[Spot]
    width: int
    height: int

    @classmethod
    def of(cls, name: str, figure: Figure) -> "Picture":
        text = svg(figure)
        width, height = (round(72 * inches) for inches in figure.get_size_inches())
        return cls(name, " ".join(figure.get_suptitle().split()), text,
                   spots(figure), width, height)

    @property
    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


class Section(NamedTuple):
    """A heading, and what stands below it."""

    title: str
    tables: list[Table]
    pictures: list[Picture]
    commands: Sequence[Commands] = ()

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Page:
    """All there is to say about some runs. `progress` is of those that are not finished."""

    title: str
    made: str
    learning: list[str]
    summary: list[str]
    sections: list[Section]
    timing: Table
    progress: list[State]

    @classmethod
    def of(cls, runs: list[RecordedRun], files: list[Path]) -> "Page":
        """The page of these runs and of the proofs in these JSON files, which come first."""
        proofs = [tables.read_proof(path) for path in files]
        workloads = ", ".join(dict.fromkeys(run.settings["workload"] for run in runs))
        made = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        sections = [section for section in _sections(runs, proofs) if any(section[1:])]
        learned = [proof.claim for proof in proofs] + as_sentences(causes_of_differences(runs))
        return cls(f"{len(runs)} run{'s' * (len(runs) > 1)} of {workloads}", made, learned,
                   learned + summary(runs), sections, tables.timing(runs),
                   [state for run in runs
                    if not (state := state_of(run, time.time())).is_finished])

    def first_sentences(self) -> str:
        """What was proved, if anything, and whether the runs learn the same: for a terminal."""
        return "\n".join(textwrap.fill(sentence, TERMINAL, break_on_hyphens=False)
                         for sentence in self.learning)  # a flag stays whole

    def timing_as_text(self) -> str:
        """The timing table for a terminal, and what its numbers are."""
        lines = [self.timing.head, *self.timing.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(word.ljust(width) for word, width in
                          zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([textwrap.fill(self.timing.caption, TERMINAL), *rows])

    def write(self, folder: Path, name: str, refresh: int = 0) -> None:
        """Writes `name`.html, which holds its figures, and `name`.md with a folder of figures.

        Whoever reads a file meanwhile gets the old one or the new one. With `refresh` the HTML
        loads itself again after so many seconds.
        """
        environment = Environment(loader=FileSystemLoader(HERE), autoescape=True,
                                  undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        beside = folder / f"{name}_figures"
        beside.mkdir(parents=True, exist_ok=True)
        for section in self.sections:
            for picture in section.pictures:
                _replace(beside / f"{picture.name}.svg", picture.svg)
        style, script = (Markup((HERE / f"page.{kind}").read_text()) for kind in ("css", "js"))
        _replace(folder / f"{name}.html", environment.get_template("page.html.j2").render(
            page=self, refresh=refresh, style=style, script=script, policy=_policy(script),
            link=lambda path: os.path.relpath(path, folder)))
        plain = environment.overlay(autoescape=False)
        _replace(folder / f"{name}.md", plain.get_template("page.md.j2").render(
            page=self, figures=beside.name))


def _policy(script: str) -> str:
    """Allows what stands between the script's tags in page.html.j2."""
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    return POLICY.format(base64.b64encode(digest).decode())


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _sections(runs: Runs, proofs: list[Proof]) -> Iterator[Section]:
    yield Section("Proof", [table for proof in proofs for table in proof.tables],
                  _pictures((f"proof-{number}", proof_findings.by_step(proof.best))
                            for number, proof in enumerate(proofs, 1)))
    yield Section("Time", [tables.timing(runs)], _drawn(runs, "speed-up", "bytes", "worker-sweep"))
    yield Section("Where the time went", _with_rows(tables.phases(runs), tables.waiting(runs)),
                  _drawn(runs, "phases", "skew"))
    yield _traces(runs)
    yield Section("What was learned", _with_rows(tables.learned(runs), tables.by_class(runs)),
                  _drawn(runs, "learning", "loss-differences", "confusion",
                         "confusion-differences"))
    yield Section("Settings", _with_rows(*what_ran.settings(runs)), [])
    yield Section("Environment", [what_ran.environment(runs)], [])
    yield Section("Run it again", [], [], what_ran.commands(runs))


def _with_rows(*found: Table) -> list[Table]:
    return [table for table in found if table.rows]


def _drawn(runs: Runs, *names: str) -> list[Picture]:
    return _pictures((name, FIGURES[name](runs)) for name in names)


def _pictures(drawn: Iterable[tuple[str, Figure | None]]) -> list[Picture]:
    return [Picture.of(name, figure) for name, figure in drawn if figure]


def _traces(runs: Runs) -> Section:
    """Of the runs with --profile: the top operators, the timeline, and what travels when."""
    found, pictures = _with_rows(tables.operators(runs)), []
    for run in runs:
        for path in sorted((run.folder / "traces").glob("trace_all*.json.gz"))[-1:]:
            trace, name = unpack_trace(path.read_bytes()), short(run.name)
            place = f"{run.name.replace('/', '-').lower()}-{run.ranks}"
            pictures.append((f"trace-{place}", timeline(trace, name)))
            if intervals := travel(trace):
                found.append(tables.travel(intervals, name))
                pictures.append((f"travel-{place}", travel_figure(intervals, name)))
    return Section("Traces", found, _pictures(pictures))
