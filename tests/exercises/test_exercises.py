"""The exercises: an unwritten one is told so, a reference solution is passed by the judge it names.

Mutations that turn this red: `pass` in place of a raise; a solution that does not divide; another
--bytes or class in an exercise's command; an import of PartTwo in an exercise; another number of
bytes in docs/teaching.md.
"""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

from common.settings.user_code import Place
from scripts import grade
from studies.grading import report
from studies.grading.grading import grade_of
from studies.grading.scenarios import BASIC, EVERYWHERE
from tests.exercises import solutions
from tests.facts import says
from tests.ranks import ROOT, ranks
from tests.unit.test_structure import imports

SOLUTIONS = ROOT / "tests/exercises/solutions.py"
EXERCISES = sorted((ROOT / "exercises").glob("*.py"))
THE_RING = ROOT / "exercises/two_ring_all_reduce.py"
LARGE = EVERYWHERE[-1]  # whose bytes are compared with the bound
SOME = {2: [BASIC], 3: [BASIC, LARGE]}


def judge(path: Path) -> list[str]:
    """The arguments of scripts/grade.py in the exercise's docstring: its place first."""
    told = ast.get_docstring(ast.parse(path.read_text())) or ""
    command, = re.findall(r"^ *python3 scripts/grade\.py (.*)$", told, re.MULTILINE)
    return shlex.split(command)


def unwritten(path: Path) -> list[str]:
    """The methods that a student writes."""
    return [node.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Raise)]


def ended(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the grader's command; returns its exit code."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["grade.py", *arguments])
    monkeypatch.setattr(ranks, "preload", lambda *_: None)  # the tests' forkserver has it all
    with pytest.raises(SystemExit) as end:
        grade.main()
    return end.value.code


def test_an_unwritten_exercise_is_told_so(monkeypatch, capsys):
    assert ended(judge(THE_RING), monkeypatch) == 2
    verdict, *trace = capsys.readouterr().out.splitlines()
    method = unwritten(THE_RING)[0]
    line = next(number for number, text in enumerate(THE_RING.read_text().splitlines(), 1)
                if f'NotImplementedError("{method}' in text)
    assert says(verdict, THE_RING.name, f"line {line}", f"NotImplementedError: {method}")
    assert any(f'{THE_RING}", line {line}, in {method}' in row for row in trace)
    assert says(trace[-1], "0.0 of 100")


def test_a_solution_is_passed_by_the_whole_command(monkeypatch, capsys):
    place, *flags = judge(THE_RING)
    solution = f"{SOLUTIONS}:{place.partition(':')[2]}"
    assert ended([solution, *flags], monkeypatch) == 0
    told = capsys.readouterr().out
    assert says(told, f"{solution}: right", "100.0 of 100")


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_every_solution_is_right_and_keeps_the_bound(path):
    place, flag, bound = judge(path)
    name = place.partition(":")[2]
    found = grade_of(Place(SOLUTIONS, name), bound, plan=SOME)
    assert flag == "--bytes" and found.exit_code == 0, found.diagnosis
    assert report.points(found) == 100 and found.costs


def test_the_document_has_the_bytes_that_the_grader_counts():
    counted = [cost.busiest for name in ("GatherScatter", "RingAllReduce")
               for cost in grade_of(Place(SOLUTIONS, name), plan={4: [LARGE]}).costs]
    assert says((ROOT / "docs/teaching.md").read_text(), *(f"{each:,}" for each in counted))
    assert len(counted) == 2


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_every_exercise_names_its_judge_and_stands_alone(path):
    place = Place.parse(judge(path)[0])
    assert place is not None and ROOT / place.file == path
    assert hasattr(Place(path, place.name).load(), "average") and not imports(path)
    solved = [name for name in vars(getattr(solutions, place.name)) if not name.startswith("_")]
    assert unwritten(path) == solved
    assert shlex.join(judge(path)) in (ROOT / "exercises/README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_every_exercise_as_it_is_handed_out(path, monkeypatch, capsys):
    assert ended(judge(path), monkeypatch) == 2
    assert f"NotImplementedError: {unwritten(path)[0]}" in capsys.readouterr().out
