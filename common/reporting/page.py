"""The page: sections of text, tables and figures, rendered twice from the same values."""

import base64
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from common.core.trace_file import unpack_trace
from common.reporting import confusion_figures, figures, proof_findings, tables
from common.reporting.figure_style import svg
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import as_sentences, causes_of_differences, short, summary
from common.reporting.tables import Proof, Runs, Table
from common.reporting.timeline import timeline

TERMINAL = 100  # columns
FIGURES = {**figures.FIGURES, "confusion": confusion_figures.confusion,
           "confusion-differences": confusion_figures.differences}


class Picture(NamedTuple):
    """A figure as SVG. `name` is a file's, `words` its title, its text alternative."""

    name: str
    words: str
    svg: str

    @property
    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


class Section(NamedTuple):
    """A heading, and what stands below it."""

    title: str
    tables: list[Table]
    pictures: list[Picture]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Page:
    """All there is to say about some runs."""

    title: str
    made: str
    learning: list[str]
    summary: list[str]
    sections: list[Section]
    timing: Table

    @classmethod
    def of(cls, runs: list[RecordedRun], files: list[Path]) -> "Page":
        """The page of these runs and of the proofs in these JSON files, which come first."""
        proofs = [tables.read_proof(path) for path in files]
        workloads = ", ".join(dict.fromkeys(run.settings["workload"] for run in runs))
        made = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
        sections = [section for section in _sections(runs, proofs) if any(section[1:])]
        learned = [proof.claim for proof in proofs] + as_sentences(causes_of_differences(runs))
        return cls(f"{len(runs)} run{'s' * (len(runs) > 1)} of {workloads}", made, learned,
                   learned + summary(runs), sections, tables.timing(runs))

    def first_sentences(self) -> str:
        """What was proved, if anything, and whether the runs learn the same: for a terminal."""
        return "\n".join(textwrap.fill(sentence, TERMINAL) for sentence in self.learning)

    def timing_as_text(self) -> str:
        """The timing table for a terminal."""
        lines = [self.timing.head, *self.timing.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(word.ljust(width) for word, width in
                                   zip(line, widths, strict=True)).rstrip() for line in lines)

    def write(self, folder: Path, name: str) -> None:
        """Writes `name`.html, which holds its figures, and `name`.md with a folder of figures."""
        environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
                                  undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        beside = folder / f"{name}_figures"
        beside.mkdir(parents=True, exist_ok=True)
        for section in self.sections:
            for picture in section.pictures:
                (beside / f"{picture.name}.svg").write_text(picture.svg)
        (folder / f"{name}.html").write_text(
            environment.get_template("page.html.j2").render(page=self))
        plain = environment.overlay(autoescape=False)
        (folder / f"{name}.md").write_text(
            plain.get_template("page.md.j2").render(page=self, figures=beside.name))


def _sections(runs: Runs, proofs: list[Proof]) -> Iterator[Section]:
    yield Section("Proof", [table for proof in proofs for table in proof.tables],
                  _pictures((f"proof-{number}", proof_findings.by_step(proof.best))
                            for number, proof in enumerate(proofs, 1)))
    yield Section("Time", [tables.timing(runs)], _drawn(runs, "speed-up", "bytes", "worker-sweep"))
    yield Section("Where the time went", _with_rows(tables.phases(runs)),
                  _drawn(runs, "phases", "skew"))
    yield Section("Traces", _with_rows(tables.operators(runs)), _pictures(_timelines(runs)))
    yield Section("What was learned", _with_rows(tables.learned(runs), tables.by_class(runs)),
                  _drawn(runs, "learning", "confusion", "confusion-differences"))
    yield Section("Settings", _with_rows(*tables.settings(runs)), [])
    yield Section("Environment", [tables.environment(runs)], [])


def _with_rows(*found: Table) -> list[Table]:
    return [table for table in found if table.rows]


def _drawn(runs: Runs, *names: str) -> list[Picture]:
    return _pictures((name, FIGURES[name](runs)) for name in names)


def _pictures(drawn: Iterable[tuple[str, Figure | None]]) -> list[Picture]:
    return [Picture(name, " ".join(figure.get_suptitle().split()), svg(figure))
            for name, figure in drawn if figure]


def _timelines(runs: Runs) -> Iterator[tuple[str, Figure]]:
    for run in runs:
        for path in sorted((run.folder / "traces").glob("trace_all*.json.gz"))[-1:]:
            yield (f"trace-{run.name.replace('/', '-').lower()}-{run.ranks}",
                   timeline(unpack_trace(path.read_bytes()), short(run.name)))
