"""The command, its files and exit codes; what limits a strategy; what is counted at the sockets.

Mutations that turn this red: an exit code that is the first strategy's; no RLIMIT_DATA; POINTS for
`most` in _rows; SocketBytes without those closed since; SETTLE_SECONDS = 0; no is_file() in
places_of; sys.stdout in _say; no `tell` in grade_of; LONGER = 1; `str` for `visible` in Grade.name
or in `outcomes`; no sys.stdin; no _require_source; no slice in Tail; a grep for `dist.` alone.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from common.core.failures import UsageError
from common.settings.user_code import Place
from scripts.grade import main, places_of, without
from studies.grading import grading, report, session
from studies.grading.costs import SyncCost
from studies.grading.finding import HEADLINES, Finding
from studies.grading.grading import Grade, grade_of
from studies.grading.hypotheses import HYPOTHESES
from studies.grading.messages import Seen, Settled
from studies.grading.mistakes import ScenarioCheck, mistakes
from studies.grading.rank_under_test import Tail
from studies.grading.scenarios import BASIC, EVERYWHERE, PLAN
from studies.grading.socket_bytes import SocketBytes, Traffic
from studies.stacks import innermost
from tests.facts import says
from tests.grading.table import RIGHT
from tests.ranks import ROOT, ranks

TWO = {2: [BASIC]}
BAD_FILES = {"missing": ("", "none.py"), "syntax": ("def mine(:", "SyntaxError"),
             "other_name": ("def yours(): pass", "yours"),
             "import_error": ("import nothing_like_it", "ModuleNotFoundError"),
             "arguments": ("class mine:\n    def __init__(self, a): pass", "arguments"),
             "notebook": ('{\n "cells": []}', "notebook"), "zip": ("PK\3\4\0", "zip"),
             "tolerance": ("def mine(g): pass\nmine.tolerance = 3", "tolerance = 3")}
STACKS = """Thread 0x1 (most recent call first):
  File "/usr/lib/threading.py", line 5 in wait

Current thread 0x2 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 30 in all_reduce
  File "/lib/torch/distributed/c10d_logger.py", line 9 in wrapper
  File "{file}", line 2 in average
  File "/home/studies/grading/rank_under_test.py", line 1 in step
"""


def written(folder: Path, text: str, name: str = "mine") -> Place:
    (folder / f"{name}.py").write_text(text)
    return Place(folder / f"{name}.py", "mine")


def test_the_command_grades_several_and_writes_both_files(tmp_path, monkeypatch, capsys):
    broken = written(tmp_path, "def mine(gradients):\n    gradients[0].no_such_thing\n")
    flags = [f"{RIGHT}:Flat", str(broken), "--bytes", "ring", "--json", str(tmp_path / "new/j"),
             "--gradescope", str(tmp_path / "g")]
    monkeypatch.setattr(sys, "argv", ["grade.py", *flags])
    monkeypatch.setattr(ranks, "preload", lambda *_: None)  # the tests' forkserver has it all
    with pytest.raises(SystemExit) as ended:
        main()
    printed, told = capsys.readouterr()
    assert ended.value.code == 2
    assert says(told.splitlines()[0], 2, "60 s")
    assert any(says(line, f"{RIGHT}:Flat", 7, "2 ranks") for line in told.splitlines())
    assert "Flat: right\n" in printed and "gradients[0].no_such_thing" in printed
    assert "rank_under_test" not in printed  # the traceback has the user's lines alone
    right, wrong = json.loads((tmp_path / "new/j").read_text())
    assert right["is_right"] and right["exit_code"] == 0 and right["points"] == 100
    assert wrong["diagnosis"]["id"] == "raises" and wrong["exit_code"] == 2
    results = json.loads((tmp_path / "g").read_text())
    assert results["score"] == 50  # what is right on one rank alone counts nothing
    assert sum(test["score"] for test in results["tests"]) == pytest.approx(results["score"], abs=1)
    assert sum(test["max_score"] for test in results["tests"]) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_used(name, tmp_path):
    text, fact = BAD_FILES[name]
    place = written(tmp_path, text) if text else Place(tmp_path / "none.py", "mine")
    grade = grade_of(place, plan=TWO)
    assert grade.diagnosis is not None and grade.diagnosis.id == "unusable"
    assert grade.exit_code == 2 and says(grade.diagnosis.sentence, fact)


def test_a_name_that_a_file_does_not_have_is_told_before_any_rank_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "Ranks", None)
    diagnosis = grade_of(written(tmp_path, "def yours(): pass"), plan=TWO).diagnosis
    assert diagnosis is not None and says(diagnosis.sentence, "mine", "yours")
    for text in ("from x import *\ndef yours(): pass", "def yours(): pass\nmine = yours"):
        with pytest.raises(TypeError):  # the ranks are asked
            grade_of(written(tmp_path, text), plan=TWO)


def test_an_exception_tells_the_rank_and_the_users_lines(tmp_path):
    text = ("import torch.distributed as dist\ncalls = []\ndef mine(gradients):\n"
            "    calls.append(1)\n    if len(calls) == 3 and dist.get_rank() == 1:\n"
            "        raise ValueError('out of paper')\n    dist.all_reduce(gradients[0])\n")
    grade = grade_of(written(tmp_path, text), plan=TWO)
    assert grade.exit_code == 2 and grade.diagnosis is not None and grade.diagnosis.rank == 1
    assert says(grade.diagnosis.sentence, "rank 1", "mine.py", "line 6", "step 3",
                "ValueError: out of paper")
    assert "out of paper" in grade.diagnosis.trace


def test_no_line_of_a_traceback_looks_like_the_graders(tmp_path):
    text = "def mine(gradients):\n    raise ValueError('oops\\n 100.0  right  other.py:Mine')\n"
    printed = report.as_text(grade_of(written(tmp_path, text), plan=TWO)).splitlines()
    assert "  |  100.0  right  other.py:Mine" in printed
    assert not [line for line in printed if line.startswith((" 100.0", "100.0"))]


def test_no_name_of_a_folder_looks_like_a_row(tmp_path):
    lines = list[str]()
    place = Place(tmp_path / "a\n 100.0  right  other/none.py", "mine")
    found = grade_of(place, plan=TWO, tell=lines.append)
    for text in (*lines, report.as_text(found), report.as_list([found]),
                 report.as_gradescope([found, found])["tests"][0]["name"]):
        assert not [line for line in text.splitlines() if line.startswith(" 100.0")]


def test_nothing_can_be_read_where_a_terminal_would_be(tmp_path):
    found = grade_of(written(tmp_path, "def mine(gradients):\n    input()\n"), plan=TWO)
    assert found.diagnosis is not None and says(found.diagnosis.sentence, "line 2", "EOFError")


def test_of_much_output_the_end_is_kept():
    tail = Tail()
    print("x" * (1 << 20), "the end", file=tail)
    assert tail.text.endswith("the end\n") and len(tail.text) < 1 << 16


def test_a_declared_tolerance_counts_as_far_as_it_is_allowed():
    found = [grade_of(Place(RIGHT, "HalfTheBytes"), plan=TWO, tolerance=allowed)
             for allowed in (0.0, 0.1)]
    assert [each.tolerance for each in found] == [0.0, 1e-2]
    assert [each.diagnosis and each.diagnosis.id for each in found] == ["rounded", None]


def test_memory_is_limited(tmp_path):
    text = "import torch\ndef mine(gradients):\n    torch.ones(6 << 30, dtype=torch.uint8)\n"
    grade = grade_of(written(tmp_path, text), plan=TWO)
    assert grade.diagnosis is not None and "allocate" in grade.diagnosis.sentence


def test_bytes_are_counted_at_the_sockets():
    counted = SocketBytes(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = counted.total()
        with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
            one.sendall(bytes(5000))
            while other.recv(5000, socket.MSG_PEEK | socket.MSG_WAITALL) != bytes(5000):
                pass
            assert counted.total().since(before) == Traffic(5000, 5000)
    assert counted.total().since(before) == Traffic(5000, 5000)  # those that are closed count
    counted.close()


class LateRanks:
    """A strategy whose last numbers come `LATE` seconds after average() has returned."""

    LATE = 0.015

    def traffic(self):
        return [Traffic(0, 0)]

    def ask(self, order):
        if order.is_settling:
            is_late = max(order.start, time.monotonic()) > self.returned + self.LATE
            return [Settled([np.full(1, float(is_late))])]
        self.returned = time.monotonic()
        return [Seen([np.zeros(1)], "", False, ([], [], []), False)]


def test_what_comes_late_has_time_to_come():
    steps, trouble = session._run(LateRanks(), 1, 0, BASIC, time.monotonic() + 60)
    assert trouble is None and [step.settled[0].gradients[0][0] for step in steps] == [1, 1, 1]


def test_a_stack_tells_the_users_line_and_the_call(tmp_path):
    file = written(tmp_path, "one\ndist.all_reduce(gradient)\n").file
    waiting = innermost(STACKS.format(file=file), 1, file)
    assert says(waiting, "rank 1", "line 2", "`dist.all_reduce(gradient)`")
    assert not says(innermost("", 1, file), "outside")  # it may spin in its own line
    elsewhere = innermost(STACKS.format(file="/elsewhere/x.py"), 1, file)
    assert says(elsewhere, "rank 1") and not says(elsewhere, "line")


def test_a_star_stands_for_several_files(tmp_path):
    for name in ("b", "a"):
        written(tmp_path, "", name)
    assert [str(each) for each in places_of(f"{tmp_path}/*.py:mine")] == [
        f"{tmp_path}/a.py:mine", f"{tmp_path}/b.py:mine"]
    for text in (f"{tmp_path}/c*.py:mine", "all-reduce"):
        with pytest.raises(UsageError):
            places_of(text)


def test_who_has_handed_in_nothing_is_named(tmp_path):
    for name, file in (("ada", "mine"), ("bo", "mine (1)"), ("cy\n", "")):
        (tmp_path / name).mkdir()
        if file:
            written(tmp_path / name, "", file)
    bo, cy = without(f"{tmp_path}/*/mine.py:mine").splitlines()
    assert says(bo, "bo", "mine.py", "mine (1).py") and says(cy, "cy\\n", "mine.py")
    assert without(f"{tmp_path}/*/m*.py:mine") == without("mine.py:mine") == ""


def test_one_that_lacks_time_alone_is_tried_once_more_for_longer(tmp_path, monkeypatch, capsys):
    late = grade(SyncCost(2, 1, 1, 1), "none")._replace(
        mistakes=[Finding("time-limit", HEADLINES["time-limit"])])
    given = list[float]()
    monkeypatch.setattr(grading, "grade_of", lambda place, bound, seconds, **_: (
        given.append(seconds), late)[1])
    monkeypatch.setattr(ranks, "preload", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["grade.py", str(written(tmp_path, ""))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and given == [60, 180]
    assert "WRONG" not in capsys.readouterr().out


RING = "exercises/two_ring_all_reduce.py"
SHOWN = {"full": "        torch.distributed.all_reduce(row)\n",
         "ours": "from tests.exercises.solutions import RingAllReduce\n",
         "honest": "        dist.isend(chunks[0], 1)\n"}


def test_the_documented_search_shows_who_lets_others_do_the_exercise(tmp_path):
    handed_out = (ROOT / RING).read_text()
    for name, line in SHOWN.items():
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / Path(RING).name).write_text(handed_out + line)
    (tmp_path / "exercises").symlink_to(ROOT / "exercises")
    command = re.search(r"^grep .*", (ROOT / "docs/teaching.md").read_text(), re.MULTILINE)
    assert command is not None
    shown = subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, text=True,
                           capture_output=True).stdout.splitlines()
    assert [Path(line.split(":")[0]).parent.name for line in shown] == ["full", "ours"]


def test_a_missing_file_is_told_at_once(tmp_path, monkeypatch):
    there = written(tmp_path, "def mine(gradients): pass")
    monkeypatch.setattr(sys, "argv", ["grade.py", str(there), f"{tmp_path}/none.py:mine"])
    monkeypatch.setattr(grading, "grade_of", None)  # nothing is graded before
    with pytest.raises(UsageError, match=r"/none\.py\b") as error:
        main()
    assert error.value.exit_code == 2


def grade(cost: SyncCost, bound: str) -> Grade:
    checks = [ScenarioCheck(world, scenario, True, []) for world in PLAN for scenario in EVERYWHERE]
    return Grade(Place(Path("a.py"), "b"), [], checks, [cost], bound, 0.0, 1.0)


@pytest.mark.parametrize(("bound", "busiest", "points"), [
    ("ring", 1500, 100), ("ring", 3000, 90), ("root", 3000, 100), ("root", 6000, 90),
    ("none", 9000, 100)])
def test_points_for_bytes(bound, busiest, points):
    cost = SyncCost(4, 1000, busiest, 6000)
    assert report.points(grade(cost, bound)) == pytest.approx(points)


def test_all_of_the_plan_must_be_run():
    checks = [*grade(SyncCost(2, 1, 1, 1), "none").checks]
    assert not mistakes(checks)
    found, = mistakes([*checks[:-1], checks[-1]._replace(was_run=False)])
    assert found.id == "time-limit"


def test_every_hypothesis_has_a_headline():
    assert {hypothesis.id for hypothesis in HYPOTHESES} <= HEADLINES.keys()
