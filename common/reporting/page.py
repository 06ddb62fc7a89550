"""The page: sections of text, tables and figures, rendered twice from the same values."""

import base64
import hashlib
import os
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.core.failures import DataError
from common.core.files import read_bytes, replace_file
from common.core.markdown import aligned, as_markdown
from common.core.trace_file import unpack_trace
from common.core.visible import visible
from common.reporting import (
    confusion_figures,
    difference_figures,
    figures,
    tables,
    waiting,
    what_ran,
)
from common.reporting.picture import Picture
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import (
    as_sentences,
    causes_of_differences,
    going_on,
    short,
    speed_up,
    summary,
)
from common.reporting.run_state import RunState, state_of, tally
from common.reporting.tables import Proof, Runs, Table
from common.reporting.timeline import timeline
from common.reporting.what_ran import Commands

TERMINAL = 100  # columns
HERE = Path(__file__).parent
FIGURES = {**figures.FIGURES, "loss-differences": difference_figures.loss_differences,
           "confusion": confusion_figures.confusion, "waiting": waiting.figure}
# Nothing is fetched, and no script runs but ours, whatever the logs hold.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"


class Section(NamedTuple):
    """A section of the page: a heading, text, tables and figures."""

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
    made: datetime
    learning: list[str]
    speed_up: list[str]
    summary: list[str]
    sections: list[Section]
    timing: Table
    progress: list[RunState]

    @classmethod
    def of(cls, runs: list[RecordedRun], files: list[Path]) -> "Page":
        """The page of these runs and of the proofs in these JSON files, which come first."""
        proofs = [tables.read_proof(path) for path in files]
        workloads = ", ".join(dict.fromkeys(run.settings["workload"] for run in runs))
        made = datetime.now(timezone.utc).replace(microsecond=0)
        sections = [section for section in _sections(runs, proofs) if any(section[1:])]
        learned = [proof.claim for proof in proofs] + as_sentences(causes_of_differences(runs))
        states = [state_of(run, time.time()) for run in runs]
        title = f"{len(runs)} run{'s' * (len(runs) > 1)} of {workloads}: {tally(states)}"
        went_on = as_sentences([going_on(run) for run in runs])
        return cls(title, made, learned, as_sentences([speed_up(runs)]),
                   learned + went_on + summary(runs),
                   sections, tables.timing(runs),
                   [state for state in states if not state.is_finished])

    def first_sentences(self) -> str:
        """The proof's claim, if any, whether the runs learn the same, and the best speed-up."""
        return "\n".join(textwrap.fill(sentence, TERMINAL, break_on_hyphens=False)
                         for sentence in [*self.learning, *self.speed_up])  # a flag stays whole

    def timing_as_text(self) -> str:
        """The timing table for a terminal, and what its numbers are."""
        rows = aligned([self.timing.head, *self.timing.rows])
        return "\n".join([textwrap.fill(self.timing.caption, TERMINAL), *rows])

    def write(self, folder: Path, name: str, refresh: int = 0) -> None:
        """Writes `name`.html, which holds its figures, and `name`.md with a folder of figures.

        Whoever reads a file meanwhile gets the old one or the new one. With `refresh` the HTML
        loads itself again after so many seconds.
        """
        environment = Environment(loader=FileSystemLoader(HERE), autoescape=True,
                                  undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                                  finalize=_shown)
        environment.filters["as_markdown"] = as_markdown
        beside = folder / f"{name}_figures"
        beside.mkdir(parents=True, exist_ok=True)
        for section in self.sections:
            for picture in section.pictures:
                replace_file(beside / f"{picture.name}.svg", picture.svg.encode())
        style, script = (Markup((HERE / f"page.{kind}").read_text()) for kind in ("css", "js"))
        replace_file(folder / f"{name}.html", environment.get_template("page.html.j2").render(
            page=self, refresh=refresh, style=style, script=script, policy=_policy(script),
            link=lambda path: os.path.relpath(path, folder)).encode())
        plain = environment.overlay(autoescape=False)
        replace_file(folder / f"{name}.md", plain.get_template("page.md.j2").render(
            page=self, figures=beside.name).encode())


def _shown(value: object) -> object:
    """A value as the template prints it: text from logs without control or direction characters."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _policy(script: str) -> str:
    """Allows what stands between the script's tags in page.html.j2."""
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    return POLICY.format(base64.b64encode(digest).decode())


def _sections(runs: Runs, proofs: list[Proof]) -> Iterator[Section]:
    yield Section("Proof", [table for proof in proofs for table in proof.tables], [])
    yield Section("Time", [tables.timing(runs)], _drawn(runs, "speed-up"))
    yield Section("Where the time went", _with_rows(tables.phases(runs)),
                  _drawn(runs, "phases", "waiting"))
    yield _traces(runs)
    yield Section("What was learned", [tables.learned(runs)],
                  _drawn(runs, "learning", "loss-differences", "confusion"))
    yield Section("Settings", _with_rows(*what_ran.settings(runs)), [])
    yield Section("Environment", [what_ran.environment(runs)], [])
    yield Section("Run it again", [], [], what_ran.commands(runs))


def _with_rows(*found: Table) -> list[Table]:
    return [table for table in found if table.rows]


def _drawn(runs: Runs, *names: str) -> list[Picture]:
    drawn = ((name, FIGURES[name](runs)) for name in names)
    return [Picture.of(name, figure) for name, figure in drawn if figure]


def _traces(runs: Runs) -> Section:
    """The section on traces: top operators, and a timeline for each run."""
    drawn = [_timeline(path, path.lstat().st_mtime_ns, short(run.name),
                       f"trace-{run.name.replace('/', '-').lower()}-{run.ranks}")
             for run in runs
             for path in sorted((run.folder / "traces").glob("trace_all*.json.gz"))[-1:]]
    return Section("Traces", _with_rows(tables.operators(runs)), drawn)


@lru_cache
def _timeline(path: Path, changed: int, name: str, file: str) -> Picture:
    """The picture of one run's trace, drawn once until it changes: that takes a second.

    Raises DataError if the file is not a trace.
    """
    try:
        return Picture.of(file, timeline(unpack_trace(read_bytes(path)), name))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{path} is not a trace that a run with --profile wrote") from error
