"""Submissions that attack the grader harm themselves alone, also where it has no namespaces.

The slow test grades a hundred, as python3 -m tests.grading.hostile does; here some that are quick.

Mutations that turn this red: MOST_PROCESSES = 10000; no end_descendants; no adopt_orphans,
without namespaces; Exception for BaseException in serve; a `secret` that is 0; no give_up_rights;
no _refuse_unix_sockets; no _nothing_sent.
"""

import os
import time
from pathlib import Path

import pytest

import tests.ranks  # noqa: F401  (what the forkserver has loaded)
from studies.grading import isolation, report, supervision
from studies.grading.descendants import descendants, end_descendants, own_number
from studies.grading.grading import Grade, grade_of
from studies.grading.scenarios import BASIC, EVERYWHERE
from tests.facts import says
from tests.grading import hostile

TWO = {2: [BASIC, EVERYWHERE[-1]]}
AVERAGE = hostile.STAGES["average"]
NUMBERS = {"step": 1, "rank": 0, "code": 0, "many": 60, "odd": "nan", "place": "HERE",
           "signal": "SIGKILL", "message": "Seen"}
QUICK = {"os._exit": "ends-process", "BaseException": "ends-process", "fork bomb": "processes",
         "processes that leave": "processes", "floods the grader": "forged",
         "pickled objects": "forged", "overwrites files": "raises", "asks the forkserver": "raises"}
ISOLATED = {"ends all it may": "ends-process"}
CHEATS = {"computes other shards": "differs", "patches the grader's classes": "forged",
          "files between ranks": "raises", "own connections that are closed": "nothing-sent"}


@pytest.fixture(params=[True, False], ids=["isolated", "not isolated"])
def is_isolated(request, monkeypatch) -> bool:
    if request.param and not isolation.is_possible():
        pytest.skip("this user may not make namespaces here")
    monkeypatch.setattr(supervision, "can_isolate", lambda: request.param)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> None:
    """Starts the forkserver before processes are counted, whichever test comes first."""
    isolation.is_possible()


def graded(text: str, folder: Path, **numbers) -> Grade:
    each = hostile.Hostile("", (hostile.HEAD + text).format(**{**NUMBERS, **numbers}))
    place, = hostile.folder_of([each], folder)
    before = len([*descendants(own_number())])
    grade = grade_of(place, plan=TWO)
    assert not hostile.complaint(grade, folder, before), grade
    return grade


@pytest.mark.parametrize("name", QUICK)
def test_an_attack_is_a_finding_against_itself(name, is_isolated, tmp_path):
    grade = graded(AVERAGE.replace("{act}", hostile.ACTS[name]), tmp_path)
    assert grade.diagnosis is not None and grade.diagnosis.id == QUICK[name], grade.diagnosis
    assert report.points(grade) == 0 and grade.exit_code in (1, 2)


@pytest.mark.parametrize("name", ISOLATED)
def test_what_a_namespace_keeps_out_of_reach(name, tmp_path):
    if not supervision.can_isolate():
        pytest.skip("this user may not make namespaces here, and this could end all processes")
    grade = graded(AVERAGE.replace("{act}", hostile.ACTS[name]), tmp_path)
    assert grade.diagnosis is not None and grade.diagnosis.id == ISOLATED[name], grade.diagnosis


@pytest.mark.parametrize("name", CHEATS)
def test_who_cheats_gets_nothing(name, tmp_path):
    grade = graded(hostile.CHEATS[name], tmp_path)
    assert report.points(grade) == 0 and grade.diagnosis is not None
    assert CHEATS[name] in {each.id for check in grade.checks for each in check.findings}


def test_who_ends_the_process_is_told_the_line_and_the_step(tmp_path):
    grade = graded(AVERAGE.replace("{act}", "sys.exit('bye')"), tmp_path)
    told = grade.diagnosis and grade.diagnosis.sentence
    assert says(told, "hostile0.py", "line", "step 2", "SystemExit: bye") and grade.exit_code == 2


def test_an_exit_that_no_line_of_the_user_has_raised_is_told_too(tmp_path):
    told = graded("time.sleep = sys.exit\ndef mine(gradients): pass\n", tmp_path).diagnosis
    assert told is not None and told.id == "ends-process" and "SystemExit" in told.sentence


def test_a_process_that_leaves_its_parents_ends_too(is_isolated, tmp_path):
    text = ("def mine(gradients):\n    if os.fork():\n        os.wait()\n    else:\n"
            "        os.setsid()\n        for each in range(1, 32):\n"
            "            if each not in (9, 19, 17, 18):\n"
            "                signal.signal(each, signal.SIG_IGN)\n        if not os.fork():\n"
            "            time.sleep(1000)\n        os._exit(0)\n    raise ValueError('no')\n")
    graded(text, tmp_path)  # which looks for what is left


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_attacks(tmp_path):
    assert isolation.is_possible(), "some of these would end all processes"
    found = [(each.name, told) for each, _, told in hostile.rows(1, 100, tmp_path) if told]
    assert not found


def test_all_below_a_process_are_ended():
    child = os.fork()
    if not child:
        isolation.adopt_orphans()
        if not os.fork():
            os.setsid()
            os.fork()
            time.sleep(1000)
        time.sleep(0.05)
        end_descendants()
        os._exit(len([*descendants(os.getpid())]))
    assert os.waitpid(child, 0)[1] == 0
