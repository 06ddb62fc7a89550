"""The lesson's changes fit the code, and a changed strategy gets the answer that the page prints.

The slow tests of tests/unit/test_docs.py run every change with the literal command.

Mutations that turn this red: another number in an answer; a change that repairs the strategy;
rename what a change of the lesson names.
"""

import shlex
from dataclasses import replace

import pytest

from scripts import prove
from studies.proof.experiment import Reference, create_reference, judged
from studies.proof.report import row
from studies.proof.strategies import chosen
from studies.proof.trajectory import Problem
from tests.lesson import MINE, PAGES, tasks

WITH_MINE = [task for task in tasks() if task.file == MINE]


def test_every_page_asks_for_a_change_and_has_its_answer():
    assert {task.page for task in tasks()} == {path.name for path in PAGES}
    assert all(task.diff and task.command and task.answer for task in tasks())


@pytest.mark.parametrize("task", tasks(), ids=str)
def test_a_change_fits_its_file(task):
    compile(task.changed(), task.file, "exec")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    command, = {task.command for task in WITH_MINE}
    options, settings = prove.parse(shlex.split(command)[2:])
    return create_reference(Problem(replace(settings, threads=1, precision="float64"),
                                    options.samples), tmp_path_factory.mktemp("proof") / "one.pt")


@pytest.mark.parametrize("task", WITH_MINE, ids=str)
def test_a_changed_strategy_gets_the_printed_answer(task, reference, tmp_path):
    (tmp_path / MINE).write_text(task.changed())
    options, _ = prove.parse(shlex.split(task.command)[2:])
    place, = options.strategies
    cases = judged(reference, chosen([f"{tmp_path}/{place}"]), options.sizes)
    task.check("\n".join(map(row, cases)))
