"""The changes that docs/lesson*.md ask the reader to make, and the answers that they print.

    <!-- change: FILE -->   a diff of this file; mine.py begins as a copy of examples/own_sync.py
    <!-- answer -->         lines of what the program says then: the last one printed before
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import blocks, in_block
from tests.ranks import ROOT

PAGES = sorted((ROOT / "docs").glob("lesson*.md"))
MINE = "mine.py"
CHANGE, ANSWER = "change: ", "answer"
ROUNDING = 1e-12


class Task(NamedTuple):
    """One change of one file, a command to run with it, and the answer to expect."""

    page: str
    file: str
    diff: str
    command: str
    answer: str

    def __str__(self) -> str:
        added = [line[1:].strip() for line in self.diff.splitlines() if line.startswith("+")]
        return f"{self.page}: {'; '.join(added)}: {self.command.split(' --')[0]}"

    def changed(self) -> str:
        """The file's text after the change, which must fit in one place."""
        text = (ROOT / ("examples/own_sync.py" if self.file == MINE else self.file)).read_text()
        lines = self.diff.splitlines()
        before, after = ("\n".join(line[1:] for line in lines if line[0] in kinds)
                         for kinds in (" -", " +"))
        assert text.count(before) == 1, f"{self.page} changes what {self.file} does not have once"
        return text.replace(before, after)

    def check(self, output: str) -> None:
        """Fails where `output` does not have what the page prints as the answer."""
        rows = {tuple(cells[:2]): cells for cells in map(_cells, output.splitlines()) if cells}
        for line in self.answer.splitlines():
            if cells := _cells(line):
                found = rows[tuple(cells[:2])]
                assert found[-1] == cells[-1], (found, line)
                for here, there in zip(found[2:-1], cells[2:-1], strict=True):
                    _require_near(float(here.split()[0]), float(there.split()[0]))
            else:
                assert _plain(line) in _plain(output), output


def tasks() -> list[Task]:
    """Every answer of the lesson, with the change that stands last before it, in order."""
    return [task for page in PAGES for task in _tasks_of(page)]


def _tasks_of(page: Path) -> Iterator[Task]:
    file = diff = command = ""
    for mark, text in blocks(page):
        if mark.startswith(CHANGE):
            file, diff = mark.removeprefix(CHANGE), text
        elif mark == ANSWER:
            yield Task(page.name, file, diff, command, text)
        else:
            command = next((each for each in in_block(text) if each.startswith(
                ("python3 scripts/prove.py", "scripts/local_cluster.sh"))), command)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("| ") else []


def _require_near(here: float, there: float) -> None:
    """Allows rounding, which differs from processor to processor; a mistake does not."""
    assert max(here, there) < ROUNDING or here == pytest.approx(there, rel=0.1), (here, there)


def _plain(text: str) -> str:
    return re.sub(r"(rank \d+) on \S+", r"\1 on HOST", text)
