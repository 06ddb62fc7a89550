"""The results in README and docs can be renewed by one command, and their age is shown.

A result whose sources have changed since is not a fault: most changes move no figure, and renewing
takes a day. So it is told as an expected failure (XFAIL, with the age), and what fails is what
certainly cannot be renewed: a shown file without a row, a row without its command or its sources, a
recorded result whose own command is refused today.

Mutations that turn this red: add a figure to docs/, or a benchmark, without a row; rename a source;
refuse a flag that a proof was made with.
"""

import json
import re
import shlex
import subprocess
from typing import NamedTuple

import pytest

from scripts.prove import parse
from tests.facts import says
from tests.ranks import ROOT

SCRIPT = (ROOT / "scripts/renew_docs.sh").read_text()
VARIABLES = dict(re.findall(r'^([A-Z]+)="([^"$]*)"$', SCRIPT, re.MULTILINE))
NEEDS = {"data", "gpu", "root", "quiet", "chromium", "minutes", "hours"}
PROOFS = sorted((ROOT / "docs").glob("proof*.json"))
NO_PROGRAMS = {ROOT / "docs/seam.svg",  # drawn by hand
               ROOT / "docs/results/renewed.txt"}


class Shown(NamedTuple):
    """A row of the table in the script."""

    name: str
    needs: list[str]
    where: list[str]
    sources: list[str]


def rows() -> list[Shown]:
    table = re.search(r"^rows\(\) \{\n.*<< END\n(.*?)^END$", SCRIPT, re.MULTILINE | re.DOTALL)[1]
    for name, text in VARIABLES.items():
        table = table.replace(f"${name}", text)
    return [Shown(cells[0].strip(), *(cell.split() for cell in cells[1:]))
            for cells in (line.split("|") for line in table.splitlines())]


def test_every_file_that_a_program_made_has_a_row():
    made = [path for path in (ROOT / "docs").rglob("*") if path.is_file() and (
        path.suffix != ".md" or path.name.startswith("proof_") or path.parent.name == "example")]
    of_rows = [path for row in rows() for place in row.where
               for found in ROOT.glob(place) for path in (found, *found.rglob("*"))]
    without = set(made) - set(of_rows) - NO_PROGRAMS
    assert not without, "give each a row in scripts/renew_docs.sh, with the command that makes it"


def test_every_benchmark_is_in_a_command():
    programs = [path.name for path in (ROOT / "benchmarks").glob("*.py")
                if "__main__" in path.read_text()]
    assert programs and all(f"benchmarks/{name}" in SCRIPT for name in programs)


def test_every_row_has_a_command_sources_and_a_place():
    functions = re.findall(r"^renew_(\w+)\(\)", SCRIPT, re.MULTILINE)
    assert functions == [row.name for row in rows()]
    for row in rows():
        assert set(row.needs) <= NEEDS and row.sources, row
        assert all((ROOT / source).exists() for source in row.sources), row
        body = SCRIPT.split(f"renew_{row.name}() {{", 1)[1].split("\n}\n", 1)[0]
        assert any(list(ROOT.glob(place)) for place in row.where) and all(
            "gpu_" in place or place in body or list(ROOT.glob(place)) for place in row.where), row


@pytest.mark.parametrize("path", PROOFS, ids=lambda path: path.stem)
def test_the_command_of_a_recorded_proof_is_understood_today(path):
    words = shlex.split(json.loads(path.read_text())["command"])
    assert words[:2] == ["python3", "scripts/prove.py"]
    options, _ = parse(words[2:])
    assert options.output == path.relative_to(ROOT).with_suffix("")


@pytest.fixture(scope="module")
def listed() -> str:
    if not (ROOT / ".git").exists():
        pytest.skip("ages are told in a clone")
    return subprocess.run([ROOT / "scripts/renew_docs.sh", "--list"], text=True, check=True,
                          capture_output=True).stdout


@pytest.mark.parametrize("name", [row.name for row in rows()])
def test_the_age_of_what_is_shown_is_told(name, listed):
    line = re.search(rf"^{name} +(.*\S)", listed, re.MULTILINE)
    assert line, listed
    if re.search(r"\d+ commits", line[1]) or not re.search(r"\d{4}-\d\d-\d\d", line[1]):
        pytest.xfail(line[1])


def test_a_name_that_is_none_is_refused():
    done = subprocess.run([ROOT / "scripts/renew_docs.sh", "no-such"], text=True,
                          capture_output=True)
    assert done.returncode == 2 and says(done.stderr, "no-such")
