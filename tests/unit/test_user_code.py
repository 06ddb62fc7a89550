"""Objects out of a user's file; what it raises is shown with its own lines.

Mutations that turn this red: catch Exception alone in own_errors; leave os._exit what it is; take
it from forked children too; leave out the place; blame a workload of ours for a module's error, or
the user's for any; `_hidden` always "".
"""

import os
import sys

import pytest
import torch
from torch import nn

from common.core.failures import PeerLost, UsageError
from common.core.progress import Progress
from common.settings.user_code import Place, UserCodeError, own_errors, require_distinct
from tests.facts import says

FILE = """import helper_of_mine
def fine(gradients):
    return helper_of_mine.half(gradients)
class Mine:
    pass
"""


def never(error):
    """Excepts nothing."""
    return False


def place(folder, text, name):
    """Something in a file with this text."""
    (folder / "mine.py").write_text(text)
    return Place(folder / "mine.py", name)


@pytest.mark.parametrize("text, place", [
    ("a/b.py:C", ("a/b.py", "C")), ("b.py", None), ("all-reduce", None), ("local-sgd:3", None)])
def test_what_is_a_place(text, place):
    found = Place.parse(text)
    assert (found and (str(found.file), found.name)) == place
    assert found is None or str(found) == text


def test_a_file_may_import_its_neighbours_and_its_errors_are_told_by_their_lines(tmp_path, capsys):
    (tmp_path / "helper_of_mine.py").write_text("def half(number):\n    return int(number) / 0\n")
    mine = place(tmp_path, FILE, "fine")
    with pytest.raises(UserCodeError) as raised, own_errors(never):
        mine.load()("3")
    assert says(raised.value, "helper_of_mine.py", "line 2", "ZeroDivisionError")
    told = capsys.readouterr().err
    assert "helper_of_mine.py" in told and "return int(number) / 0" in told
    assert "test_user_code" not in told and "user_code.py" not in told


@pytest.mark.parametrize("text, facts", [
    ("x = (1,\n", ["line 1", "SyntaxError"]), ("\nraise SystemExit(0)\n", ["line 2", "SystemExit"]),
    ("import no_such_module\n", ["line 1", "ModuleNotFoundError"]), ("a\0b", ["null bytes"]),
    ("class Mine:\n    pass\n", ["wanted", "Mine"])])
def test_a_file_that_cannot_be_used(text, facts, tmp_path):
    with pytest.raises(UsageError) as raised:
        place(tmp_path, text, "wanted").load()
    assert says(str(raised.value).replace(f"{tmp_path}/", ""), "mine.py", *facts)


def test_a_file_that_hides_a_module_of_pythons_is_told_of(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colorsys.py").write_text("from collections import nothing\n")
    with pytest.raises(UsageError) as raised:
        place(tmp_path, "import colorsys\n", "wanted").load()
    assert says(raised.value, "colorsys.py hides Python's own module colorsys")


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(UsageError) as raised:
        Place(tmp_path / "none.py", "x").load()
    assert says(raised.value, tmp_path / "none.py")


def test_a_file_that_changes_is_not_read_again(tmp_path):
    first = place(tmp_path, "value = 1\n", "value")
    assert first.load() == 1
    digest = first.digest
    assert place(tmp_path, "value = 2\n", "value").load() == 1 and first.digest != digest


@pytest.mark.parametrize("text, unless", [
    ("fine = print", never),
    ("def fine(_):\n    raise OSError", lambda error: isinstance(error, OSError)),
    ("from common.core.failures import PeerLost\ndef fine(_):\n    raise PeerLost", never)],
    ids=["not theirs", "excepted", "a failure of ours"])
def test_other_errors_stay_what_they_are(text, unless, tmp_path):
    mine = place(tmp_path, text, "fine").load()
    with pytest.raises((OSError, PeerLost)), own_errors(unless):
        mine("x")
        raise OSError


@pytest.mark.parametrize("features, classes, kind, facts", [
    (4, 3, RuntimeError, ["Linear(in_features=4", "(8, 5)", "mat1 and mat2 shapes"]),
    (5, 2, IndexError, ["CrossEntropyLoss()", "(8, 2)", "(8,)", "Target 2"])])
def test_shapes_of_a_users_model_are_told_of_though_no_line_of_the_file_runs(features, classes,
                                                                             kind, facts):
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))

    def step(workload: str) -> None:
        with own_errors(never, "rank 1: ", workload):
            nn.CrossEntropyLoss()(model(torch.ones(8, 5, 1)), torch.full((8,), 2))
    with pytest.raises(UserCodeError) as raised:
        step("task.py:MINE")
    assert says(raised.value, "rank 1", "task.py:MINE", kind.__name__, *facts)
    with pytest.raises(kind):
        step("digits-vgg11")


def test_an_error_outside_of_the_model_is_not_the_users():
    with pytest.raises(RuntimeError, match="^ours$"), own_errors(never, "", "task.py:MINE"):
        raise RuntimeError("ours")


ENDINGS = {"sys.exit(0)": "SystemExit: 0", "sys.exit('bye')": "SystemExit: bye",
           "os._exit(0)": "SystemExit: 0", "raise Odd('x')": "Odd: x",
           "raise KeyboardInterrupt": "KeyboardInterrupt"}


@pytest.mark.parametrize("code, words", ENDINGS.items(), ids=list(ENDINGS))
def test_user_code_that_ends_the_process_is_told_of_with_its_place(code, words, tmp_path,
                                                                   monkeypatch):
    monkeypatch.setattr("common.settings.user_code.process_progress", Progress)  # others move it
    mine = place(tmp_path, "import os, sys\nclass Odd(BaseException):\n    pass\n"
                 f"def fine(_):\n    {code}\n", "fine").load()
    with pytest.raises(UserCodeError) as raised, own_errors(never, "rank 3: "):
        mine("x")
    assert says(raised.value, "rank 3", "mine.py", "line 5", "start", words)


def test_what_user_code_has_forked_ends_as_it_likes(tmp_path):
    mine = place(tmp_path, "import os\ndef fine(_):\n    child = os.fork()\n    if child == 0:\n"
                 "        os._exit(7)\n    return os.waitpid(child, 0)[1]\n", "fine").load()
    assert os.waitstatus_to_exitcode(mine("x")) == 7


@pytest.mark.parametrize("texts, facts", [
    (["all-reduce", "all-reduce"], ["all-reduce"]),
    (["a/mine.py:Mine", "ddp", "b/mine.py:Mine"], ["a/mine.py:Mine", "b/mine.py:Mine"])])
def test_two_strategies_of_one_label_are_refused(texts, facts):
    require_distinct(["all-reduce", "a/mine.py:Mine"])
    with pytest.raises(UsageError) as refused:
        require_distinct(texts)
    assert says(refused.value, *facts)
