"""Objects out of a user's file; what it raises is shown with its own lines.

Mutations that turn this red: catch Exception alone in own_errors; leave os._exit what it is; take
it from forked children too; leave out the place; blame a workload of ours for a module's error, or
the user's for any.
"""

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from common.core.failures import PeerLost, UsageError
from common.core.progress import Progress
from common.settings.user_code import Place, UserCodeError, own_errors, require_distinct

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
    with pytest.raises(UserCodeError, match="helper_of_mine.py, line 2: ZeroDivisionError"), \
            own_errors(never):
        mine.load()("3")
    told = capsys.readouterr().err
    assert "helper_of_mine.py" in told and "return int(number) / 0" in told
    assert "test_user_code" not in told and "user_code.py" not in told


@pytest.mark.parametrize("text, words", [
    ("x = (1,\n", "line 1: SyntaxError"), ("\nraise SystemExit(0)\n", "line 2: SystemExit"),
    ("import no_such_module\n", "line 1: ModuleNotFoundError"), ("a\0b", "mine.py.*null bytes"),
    ("class Mine:\n    pass\n", "has no 'wanted'; it has Mine")])
def test_a_file_that_cannot_be_used(text, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        place(tmp_path, text, "wanted").load()


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="there is no file .*none.py"):
        Place(tmp_path / "none.py", "x").load()


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


@pytest.mark.parametrize("features, classes, words", [
    (4, 3, r"Linear\(in_features=4, .*\), given \(8, 5\): RuntimeError: .*mat1 and mat2 shapes"),
    (5, 2, r"CrossEntropyLoss\(\), given \(8, 2\) and \(8,\): IndexError: Target 2 is out of")])
def test_shapes_of_a_users_model_are_told_of_though_no_line_of_the_file_runs(features, classes,
                                                                             words):
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    said = f"^rank 1: task.py:MINE: its model or its loss fails in {words}"
    for workload, kind, sentence in (("task.py:MINE", UserCodeError, said),
                                     ("digits-vgg11", (RuntimeError, IndexError), "mat1|Target 2")):
        with pytest.raises(kind, match=sentence), own_errors(never, "rank 1: ", workload):
            nn.CrossEntropyLoss()(model(torch.ones(8, 5, 1)), torch.full((8,), 2))


def test_an_error_outside_of_the_model_is_not_the_users():
    with pytest.raises(RuntimeError, match="^ours$"), own_errors(never, "", "task.py:MINE"):
        raise RuntimeError("ours")


ENDINGS = {"sys.exit(0)": "SystemExit: 0", "sys.exit('bye')": "SystemExit: bye",
           "os._exit(0)": "SystemExit: 0", "raise Odd('x')": "Odd: x",
           "raise KeyboardInterrupt": "KeyboardInterrupt: KeyboardInterrupt"}


@pytest.mark.parametrize("code, words", ENDINGS.items(), ids=list(ENDINGS))
def test_user_code_that_ends_the_process_is_told_of_with_its_place(code, words, tmp_path,
                                                                   monkeypatch):
    monkeypatch.setattr("common.settings.user_code.process_progress", Progress)  # others move it
    mine = place(tmp_path, "import os, sys\nclass Odd(BaseException):\n    pass\n"
                 f"def fine(_):\n    {code}\n", "fine").load()
    sentence = f"rank 3: mine.py, line 5, ended the process during start: {words}"
    with pytest.raises(UserCodeError) as raised, own_errors(never, "rank 3: "):
        mine("x")
    assert str(raised.value) == sentence


def test_what_user_code_has_forked_ends_as_it_likes(tmp_path):
    mine = place(tmp_path, "import os\ndef fine(_):\n    child = os.fork()\n    if child == 0:\n"
                 "        os._exit(7)\n    return os.waitpid(child, 0)[1]\n", "fine").load()
    assert os.waitstatus_to_exitcode(mine("x")) == 7


@pytest.mark.parametrize("texts, words", [
    (["all-reduce", "a/mine.py:Mine"], ""), (["all-reduce", "all-reduce"], "named twice"),
    (["a/mine.py:Mine", "ddp", "b/mine.py:Mine"], "a/mine.py:Mine and b/mine.py:Mine would both")])
def test_two_strategies_of_one_label_are_refused(texts, words):
    with pytest.raises(UsageError, match=words) if words else nullcontext():
        require_distinct(texts)
