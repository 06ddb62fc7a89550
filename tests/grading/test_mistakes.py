"""Every mistake is told once, the gravest first; what it costs, and what a student reads of it.

Mutations that turn this red: the first alone in mistakes; GRAVITY of each id 0; no _is_a_sign in
`common`; no _news; HANG_WEIGHT = 1; no CHEATS in `weight`; map(str, grade.costs) in _rows;
f"{check.world} ranks"; a score of three decimals in as_gradescope; RIGHT[1.0] in _told;
no UNCLEAR_ON_TWO; no BY_CHANCE, or no RACES, in what _without drops; WRONG_NUMBERS for NO_MEANS;
is_passed for _counts in Grade.mark.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tests.ranks  # noqa: F401  (what the forkserver has loaded)
from common.settings.user_code import Place
from studies.grading import report
from studies.grading.costs import SyncCost
from studies.grading.finding import HEADLINES, Finding
from studies.grading.grading import Grade, grade_of
from studies.grading.mistakes import ScenarioCheck, mistakes
from studies.grading.scenarios import BASIC, EVERYWHERE, LOST, NAN, PARTLY, PLAN, UNUSED, ZERO
from tests.facts import says
from tests.ranks import ROOT

STRIDED, LARGE = EVERYWHERE[3:5]
CLASS = ROOT / "tests/grading/a_class"


def checks(*wrong, not_run=()):
    """All of the plan; `wrong` has (world, scenario, ids)."""
    found = {(world, scenario): ids.split() for world, scenario, ids in wrong}
    return [ScenarioCheck(world, each, (world, each) not in not_run,
                          [Finding(id, f"{HEADLINES[id]}: on {world}", rank=0)
                           for id in found.get((world, each), [])])
            for world, scenarios in PLAN.items() for each in scenarios]


def everywhere(scenarios, ids, worlds=(1, 2, 3, 4)):
    return [(world, each, ids) for world in worlds for each in scenarios]


@pytest.mark.parametrize(("wrong", "ids"), [
    ([*everywhere([STRIDED], "raises"), (4, BASIC, "rank-left-waiting")],
     "two-not-three not-contiguous"),
    ([*everywhere([STRIDED], "raises"), (4, BASIC, "sum-not-divided"), (3, LOST, "peer-lost")],
     "two-not-three not-contiguous peer-lost"),
    ([*everywhere([STRIDED], "raises", (2, 3, 4)), (1, BASIC, "raises")],
     "not-contiguous single-rank"),
    (everywhere(EVERYWHERE, "sum-not-divided"), "sum-not-divided"),
    ([*everywhere(EVERYWHERE, "stale"), (3, ZERO, "zero"), (2, UNUSED, "raises"),
      (2, PARTLY, "rank-left-waiting")], "stale rank-left-waiting raises"),
    ([*everywhere(EVERYWHERE, "float32-arithmetic"), *everywhere([LARGE], "wrong-divisor", (3, 4))],
     "wrong-divisor float32-arithmetic"),
    ([(2, BASIC, "rank-left-waiting sum-not-divided")], "rank-left-waiting sum-not-divided"),
    ([(2, BASIC, "sum-not-divided"), (3, BASIC, "wrong-divisor")], "wrong-divisor"),
    ([(2, BASIC, "wrong-order"), (2, LARGE, "rank-left-waiting")], "wrong-order"),
    ([(3, NAN, "nan"), (4, LARGE, "nothing-sent"), (2, PARTLY, "raises")],
     "nothing-sent raises nan"),
    ([*everywhere([STRIDED], "not-waited"), (2, BASIC, "sum-not-divided"), (3, NAN, "nan"),
      (4, LARGE, "wrong-divisor"), (4, BASIC, "not-in-place")], "not-waited"),
    ([(4, BASIC, "changed-under-way"), *everywhere(EVERYWHERE, "raises", (3,))],
     "changed-under-way two-not-three"),
    ([*everywhere(EVERYWHERE, "weights-averaged", (2, 3, 4)), (3, ZERO, "not-in-place")],
     "weights-averaged")])
def test_every_mistake_is_told_once_and_the_gravest_first(wrong, ids):
    assert " ".join(each.id for each in mistakes(checks(*wrong))) == ids


@pytest.mark.parametrize(("id", "world"), [("raises", 2), ("wrong-divisor", 3),
                                           ("some-ranks-only", 3)])
def test_the_clearest_of_all_checks_is_told(id, world):
    found, = mistakes(checks(*everywhere([BASIC], id)))
    assert says(found.sentence, f"on {world}")


def test_for_which_numbers_of_ranks_it_works():
    found = mistakes(checks(*everywhere([STRIDED], "raises"), (4, BASIC, "rank-left-waiting")))
    assert found[0].id == "two-not-three"
    assert re.search(r"\b2\b.*\b3\b.*\b4\b", found[0].sentence)


COST = SyncCost(2, 1000, 1000, 2000)


def grade(*wrong, bound="ring", costs=(COST,), not_run=()):
    found = checks(*wrong, not_run=not_run)
    return Grade(Place(Path("a.py"), "Mine"), mistakes(found), found, costs, bound, 0.0, 1.0)


@pytest.mark.parametrize(("wrong", "least", "most"), [
    ([], 100, 100), ([(3, LOST, "peer-lost")], 96.8, 96.8),
    ([(3, NAN, "nan")], 96.8, 96.8),
    ([(4, BASIC, "rank-left-waiting")], 40, 49), ([(2, PARTLY, "rank-left-waiting")], 40, 49),
    ([(4, LARGE, "nothing-sent")], 0, 0), ([(4, LARGE, "forged")], 0, 0)])
def test_what_a_mistake_costs(wrong, least, most):
    assert least <= report.points(grade(*wrong)) <= most


@pytest.mark.parametrize("wrong", [
    [(4, BASIC, "not-waited")], everywhere(EVERYWHERE, "not-waited"),
    [*everywhere([STRIDED], "not-waited"), (2, BASIC, "some-ranks-only"), (3, NAN, "nan")]])
def test_a_race_costs_the_same_in_however_many_scenarios_it_shows(wrong):
    found = grade(*wrong)
    assert report.points(found) == 25
    assert sum(each["score"] for each in report.as_gradescope([found])["tests"]) == (
        pytest.approx(25, abs=1))


def shown(text: str) -> None:
    assert not any(each in text for each in ("1 ranks", "SyncCost(", "Finding(", "None", "[",
                                             "array"))


@pytest.mark.parametrize("grades", [
    [grade()], [grade((4, BASIC, "rank-left-waiting"))], [grade(costs=(SyncCost(2, 1, 3, 6),))],
    [grade(*everywhere([BASIC], "raises", (2, 3, 4)),
           not_run={(world, each) for world in (2, 3, 4) for each in PLAN[world][1:]}, costs=())],
    [grade(), grade((3, NAN, "nan"), bound="none"), grade((4, LARGE, "forged"))]])
def test_a_student_reads_sentences_and_marks_of_one_decimal(grades):
    found = report.as_gradescope(grades)
    marks = [mark for test in found["tests"] for mark in (test["score"], test["max_score"])]
    assert all(mark == round(mark, 1) for mark in [found["score"], *marks])
    assert sum(test["max_score"] for test in found["tests"]) == pytest.approx(100)
    assert sum(test["score"] for test in found["tests"]) == pytest.approx(found["score"], abs=1)
    for test in found["tests"]:
        shown(f"{test['name']} {test['output']}")
        assert test["output"] != "right" or test["score"] == test["max_score"] > 0
    shown(found["output"])
    assert json.loads(json.dumps(found)) == found


def test_all_mistakes_stand_in_the_text_the_list_and_the_record():
    found = grade(*everywhere([STRIDED], "raises"), (4, BASIC, "rank-left-waiting"))
    first, second, *_ = report.as_text(found).splitlines()
    assert says(first, f"WRONG: {found.mistakes[0].sentence}")
    assert says(second, found.mistakes[1].sentence)
    assert "two-not-three, not-contiguous  a.py:Mine" in report.as_list([found, grade()])
    record = report.as_record(found)
    assert [each["id"] for each in record["mistakes"]] == ["two-not-three", "not-contiguous"]
    assert record["diagnosis"] == record["mistakes"][0]


def test_a_deadlock_on_four_ranks_is_not_hidden_by_what_fails_before():
    found = grade_of(Place(CLASS / "fay/mine.py", "Mine"), plan={2: [BASIC, STRIDED], 4: [BASIC]})
    assert [each.id for each in found.mistakes] == ["two-not-three", "not-contiguous"]
    assert says(found.mistakes[0].sentence, HEADLINES["rank-left-waiting"], "rank 3", "line")
    assert "view size is not compatible" in found.mistakes[1].sentence
    assert 0 < report.points(found) < 50


# By submission: the least and the most points, and every mistake, the gravest first.
MARKS = {
    "ada": (100, 100, "right"), "bo": (100, 100, "right"), "cem": (85, 95, "too-many-bytes"),
    "dee": (0, 0, "some-ranks-only"), "eli": (25, 25, "changed-under-way"),
    "fay": (20, 45, "two-not-three, not-contiguous, too-many-bytes"),
    "gus": (40, 65, "two-not-three"), "hal": (0, 0, "rank-left-waiting"),
    "ivy": (0, 0, "processes"), "jon": (0, 0, "ends-process"), "kim": (0, 0, "forged"),
    "lee": (0, 0, "raises")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_class_is_graded_by_one_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "scripts/grade.py", "tests/grading/a_class/*/mine.py:Mine", "--bytes",
         "ring", "--json", tmp_path / "marks"], cwd=ROOT, text=True, capture_output=True)
    found = {Path(each["strategy"]).parent.name: each
             for each in json.loads((tmp_path / "marks").read_text())}
    assert done.returncode == 2 and found.keys() == MARKS.keys(), done.stderr
    for name, (least, most, wrong) in MARKS.items():
        told = ", ".join(each["id"] for each in found[name]["mistakes"]) or "right"
        assert told == wrong and least <= found[name]["points"] <= most, found[name]
    shown(done.stdout)
    assert says(done.stderr.splitlines()[0], 12, "60 s")
