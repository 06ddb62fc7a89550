"""Programs find the environment beside them, or say in one sentence what is missing.

Mutations that turn this red: drop the `module` check of use_environment (importing a program as a
library ends the process); leave CONTINUED unset (a broken .venv is started for ever); pass
sys.argv instead of the interpreter's words (-m is lost); import torch instead of looking for it;
write a program's imports above the call; an annotation list[str] in what old Pythons read; import
torch outside of one_file.py's try.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clone import bare_python, fresh_clone, link_environment
from tests.facts import says
from tests.ranks import ROOT

FOLDERS = ("Part*", "scripts", "benchmarks", "examples")
PROGRAMS = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS
                  for path in ROOT.glob(f"{folder}/**/*.py")
                  if 'if __name__ == "__main__"' in path.read_text()
                  # asked about the interpreter that runs it; and one that imports torch alone
                  and path.name not in ("missing.py", "one_file.py"))
MISSING, ONE_FILE = "scripts/missing.py", "examples/one_file.py"
MODULES = ("tests/multiprocess/show_mistakes.py",)
OLDEST_THAT_IS_ANSWERED = (3, 6)
# What a program does before anything else, the folder of the project apart.
FIRST = ["import sys", "from pathlib import Path",
         "from common.core.interpreter import use_environment", "use_environment(__name__"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


@pytest.fixture(scope="module")
def without_environment(tmp_path_factory) -> Path:
    return fresh_clone(tmp_path_factory.mktemp("without") / "clone")


@pytest.fixture
def clone(tmp_path) -> Path:
    return fresh_clone(tmp_path / "clone")


def run(words, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Runs a command with nothing activated."""
    return subprocess.run([*map(str, words)], cwd=folder, capture_output=True, text=True,
                          timeout=100, env={"PATH": "/usr/bin:/bin", **environment})


def sentence(done: subprocess.CompletedProcess) -> str:
    """The one line on standard error of a program that ended with exit code 2."""
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_environment_a_program_runs_or_says_what_to_do(program, bare, without_environment):
    done = run([bare, program, "--help"], without_environment)
    if program in ("scripts/status.py", "scripts/predict.py"):
        assert done.returncode == 0  # reading what was measured takes no package
        return
    assert says(sentence(done), "scripts/quickstart.sh", bare)


def test_the_one_file_says_which_packages_it_needs(bare):
    assert says(sentence(run([bare, ONE_FILE, "--help"], ROOT)), bare, "Python 3.10", "torch",
                "pip install")


def test_the_one_file_is_read_by_old_pythons_as_far_as_its_packages():
    body = ast.parse((ROOT / ONE_FILE).read_text(), feature_version=OLDEST_THAT_IS_ANSWERED).body
    assert isinstance(next(node for node in body[1:] if not isinstance(
        node, ast.Import | ast.ImportFrom)), ast.Try)


@pytest.mark.parametrize("words", [["PartOne/main.py"], ["-m", "PartOne.main"]], ids="_".join)
def test_a_program_goes_on_in_the_environment_beside_it(words, bare, clone):
    link_environment(clone)
    (clone / "PartOne/main.py").write_text(
        "import sys\nsys.path.insert(0, '.')\nimport common.core.interpreter\n"
        "common.core.interpreter.use_environment(__name__)\n"
        "import os, torch\nprint(sys.prefix, sys.argv[1:], sys.flags.optimize, dict(os.environ))")
    done = run([bare, "-O", *words, "--flag", "two words"], clone)
    assert done.stdout.startswith(f"{clone / '.venv'} ['--flag', 'two words'] 1 "), done
    assert "CONTINUED" not in done.stdout  # or no program started from here could go on


def test_an_environment_that_lacks_torch_too_is_started_once(bare, clone):
    (clone / ".venv").symlink_to(bare.parent.parent)
    assert says(sentence(run([bare, "PartOne/main.py"], clone)), f"{clone}/.venv/bin/python",
                "torch")


def test_an_environment_that_does_not_start_is_none(bare, clone):
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to("/nowhere")
    assert says(sentence(run([bare, "PartOne/main.py"], clone)), bare, "torch")


@pytest.mark.parametrize(("program", "pretended", "facts"), [
    ("PartTwo/main.py", "sys.version_info = (3, 6, 15)", ["Python 3.10"]),
    (MISSING, "sys.version_info = (3, 6, 15)", ["Python 3.10"]),
    ("PartTwo/main.py", "sys.platform = 'darwin'", ["Linux", "darwin"])])
def test_what_cannot_run_is_one_sentence(program, pretended, facts, bare, without_environment):
    code = f"import runpy, sys; {pretended}; runpy.run_path('{program}', {{}}, '__main__')"
    assert says(sentence(run([bare, "-c", code], without_environment)), *facts)


def test_logs_are_read_on_other_systems_too(bare, without_environment):
    code = ("import runpy, sys; sys.platform = 'darwin'; sys.argv = ['status.py', '--help']\n"
            "runpy.run_path('scripts/status.py', {}, '__main__')")
    assert run([bare, "-c", code], without_environment).returncode == 0


def test_importing_a_program_does_not_replace_the_importer(bare, clone):
    link_environment(clone)
    done = run([bare, "-c", "import PartOne.main, sys; print(sys.prefix)"], clone)
    assert done.stdout == f"{bare.parent.parent}\n", done.stderr


def test_an_interpreter_with_torch_is_left_alone(clone):
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to("/bin/false")
    done = run([sys.executable, "PartOne/main.py", "--help"], clone)
    assert done.returncode == 0 and "usage: " in done.stdout, done.stderr


def test_looking_for_torch_does_not_load_it():
    check = ("import sys; from common.core.interpreter import use_environment\n"
             "use_environment('__main__'); sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT,
                          env={**os.environ}).returncode == 0


@pytest.mark.parametrize("program", [*PROGRAMS, *MODULES, MISSING])
def test_a_program_asks_first_and_in_words_that_old_pythons_read(program):
    source = (ROOT / program).read_text()
    body = [ast.unparse(node) for node in
            ast.parse(source, feature_version=OLDEST_THAT_IS_ANSWERED).body[1:]]
    own_folder = [line for line in body if line.startswith(("ROOT = ", "sys.path.insert("))]
    others = [line for line in body if line not in own_folder]
    expected = FIRST[2:] if program in MODULES else FIRST
    assert all(line.startswith(first) for line, first in zip(others, expected, strict=False))


@pytest.mark.parametrize("path", ["common/__init__.py", "common/core/__init__.py",
                                  "common/core/interpreter.py"])
def test_what_answers_an_old_python_is_written_for_it(path):
    """Where it is run, too: Python 3.8 evaluates annotations, and fails at list[str]."""
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text(),
                                    feature_version=OLDEST_THAT_IS_ANSWERED)))
    evaluated = [each for node in nodes for name in ("annotation", "returns")
                 if isinstance(each := getattr(node, name, None), ast.AST)]
    assert all(isinstance(each, ast.Name | ast.Constant) for each in evaluated)
