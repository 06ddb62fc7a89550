"""scripts/environment.sh: which environment the programs get, what is installed there, and how.

Installs for real, from an index of tiny wheels in a folder, into environments of the tests' own.

Mutations that turn this red: leave --index-url or PIP_EXTRA_INDEX_URL out of the pair's install;
look at CONDA_PREFIX in conda's base too; let missing.py ignore PIP_CONSTRAINT; take a .venv
without pip for complete; drop a line of constraints.txt, or raise a bound in requirements.txt above
it.
"""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.missing import Requirement, requirements
from tests.clone import bare_python, fresh_clone
from tests.facts import says
from tests.ranks import ROOT
from tests.wheels import write_index

REQUIRED = [each.name for each in requirements(ROOT / "requirements.txt")]
PAIR = ("torch", "torchvision")
HERE, THERE = "91.0", "90.0+light"  # a newer torch here than there


def run(command: list, clone: Path, **environment: str) -> subprocess.CompletedProcess:
    """Runs a command in the clone, in an environment that has nothing of this one."""
    return subprocess.run([*map(str, command)], cwd=clone, capture_output=True, text=True,
                          timeout=200, env={
                              "PATH": "/usr/bin:/bin", "HOME": str(clone.parent),
                              "PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                              **environment})


def version(environment: Path, name: str) -> str:
    """The version of a tiny package that is installed there."""
    return subprocess.run([environment / "bin/python", "-c",
                           f"import {name.replace('-', '_')} as it; print(it.__version__)"],
                          capture_output=True, text=True).stdout.strip()


def sentence(done: subprocess.CompletedProcess) -> str:
    """The one error of a script that ended with exit code 2."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1, done.stdout + done.stderr
    return errors[0]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> str:
    """All requirements, torch for some hardware that is not here, and a package with two versions.
    """
    packages = [(name, HERE) for name in (*REQUIRED, "two-versions")] + [("two-versions", "1.0")]
    return write_index(tmp_path_factory.mktemp("index"), packages)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "python").parent


@pytest.fixture
def clone(tmp_path) -> Path:
    return fresh_clone(tmp_path / "clone")


@pytest.fixture(scope="module")
def first(tmp_path_factory, bare, index) -> tuple[subprocess.CompletedProcess, Path]:
    """A first start with TORCH_INDEX, where the other index is everywhere: how it went, and where.
    """
    clone = fresh_clone(tmp_path_factory.mktemp("first") / "clone")
    light = write_index(clone.parent / "light", [(name, THERE) for name in PAIR])
    done = run(["scripts/part_one.sh", "--help"], clone, PATH=f"{bare}:/usr/bin:/bin",
               TORCH_INDEX=light, PIP_INDEX_URL=index, PIP_EXTRA_INDEX_URL=index)
    return done, clone


def test_the_pair_comes_from_the_index_that_is_named_and_the_rest_from_pypi(first):
    done, clone = first
    assert done.returncode == 0 and says(done.stdout, "PartOne/main.py"), done.stderr
    assert {name: version(clone / ".venv", name) for name in PAIR} == dict.fromkeys(PAIR, THERE)
    assert version(clone / ".venv", "tqdm") == HERE


def test_what_is_there_is_not_installed_again(first):
    _, clone = first
    done = run(["scripts/part_one.sh", "--help"], clone, PIP_INDEX_URL="file:///nowhere")
    assert done.returncode == 0 and done.stderr == ""


def test_an_active_environment_is_filled_and_no_other_made(first, clone, index):
    active = first[1] / ".venv"
    with (clone / "requirements.txt").open("a") as file:
        file.write("two-versions>=1\n")
    done = run(["scripts/part_one.sh", "--help"], clone, PIP_INDEX_URL=index,
               VIRTUAL_ENV=str(active))
    assert done.returncode == 0, done.stderr
    installing = next(line for line in done.stderr.splitlines() if says(line, "two-versions"))
    assert says(done.stderr, f"{active}/bin/python")
    assert not any(says(installing, name) for name in REQUIRED), done.stderr
    assert version(active, "two-versions") == HERE and not (clone / ".venv").exists()
    (clone / "class.txt").write_text("two-versions==1.0\n")
    done = run(["scripts/part_one.sh", "--help"], clone, PIP_INDEX_URL=index,
               VIRTUAL_ENV=str(active), PIP_CONSTRAINT="class.txt")
    assert done.returncode == 0 and version(active, "two-versions") == "1.0", done.stderr


def test_what_cannot_be_installed_is_a_sentence(first, clone, index):
    (clone / "requirements.txt").write_text("not-there>=1\n")
    done = run(["scripts/part_one.sh", "--help"], clone, PIP_INDEX_URL=index,
               VIRTUAL_ENV=str(first[1] / ".venv"))
    assert says(sentence(done), "pip")


def write_program(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("there", "environment", "chosen"), [
    ([], {}, "clone/.venv"),
    (["clone/.venv"], {}, "clone/.venv"),
    (["mine"], {"VIRTUAL_ENV": "mine"}, "mine"),
    (["mine", "clone/.venv"], {"VIRTUAL_ENV": "mine"}, "mine"),
    (["mine"], {"CONDA_PREFIX": "mine", "CONDA_DEFAULT_ENV": "mine"}, "mine"),
    (["mine"], {"CONDA_PREFIX": "mine", "CONDA_DEFAULT_ENV": "base"}, "clone/.venv")])
def test_which_environment(there, environment, chosen, clone, bare):
    folder = clone.parent
    for name in there:
        write_program(folder / name / "bin/python", "")
    values = {name: str(folder / value) if (folder / value).exists() else value
              for name, value in environment.items()}
    done = run(["bash", "-c", ". scripts/environment.sh; echo $PYTHON"], clone,
               PATH=f"{bare}:/usr/bin:/bin", **values)
    assert done.stdout == f"{folder / chosen}/bin/python\n", done.stderr


def test_a_python_that_has_torch_needs_no_environment(clone):
    notebook = write_program(clone.parent / "bin/python3", "exit 0")
    done = run(["bash", "-c", ". scripts/environment.sh; echo $PYTHON"], clone,
               PATH=f"{notebook.parent}:/usr/bin:/bin")
    assert done.stdout == f"{notebook}\n", done.stderr


# A Python without torch, whose venv leaves something unfinished.
NO_VENV = """case "$*" in
*torch*) exit 1 ;;
*venv*) mkdir -p .venv/bin && ln -sf $0 .venv/bin/python; exit 1 ;;
esac"""


@pytest.mark.parametrize(("name", "text", "facts"), [
    ("uname", "echo Darwin", ["Linux", "Darwin"]), ("python3", "exit 1", ["Python 3.10"]),
    ("python3", NO_VENV, ["python3-venv"])], ids=["macOS", "old Python", "no venv"])
def test_what_is_missing_is_one_sentence(name, text, facts, clone):
    folder = write_program(clone.parent / "bin" / name, text).parent
    for _ in range(2):  # the second time a .venv without pip may be there
        done = run(["scripts/part_one.sh"], clone, PATH=f"{folder}:/usr/bin:/bin")
        assert says(sentence(done), *facts)


def test_an_active_environment_of_an_old_python_is_one_sentence(clone):
    old = write_program(clone.parent / "old/bin/python", "exit 1")
    done = run(["scripts/part_one.sh"], clone, VIRTUAL_ENV=str(old.parent.parent))
    assert says(sentence(done), "Python 3.10", old)


def test_an_old_bash_is_one_sentence():
    done = run(["bash", "-c", ". scripts/environment.sh; needs_bash 99 1; echo went on"], ROOT)
    assert says(sentence(done), "bash 99.1") and not done.stdout
    users = {path.name.replace("_inside", "_cluster"): path.parent
             for path in (ROOT / "scripts").rglob("*.sh") if "/ranks_here.sh" in path.read_text()}
    assert "wait -n -p" in (ROOT / "scripts/ranks_here.sh").read_text() and len(users) == 2
    for name, folder in users.items():
        assert "\nneeds_bash 5 1" in (folder / name).read_text(), name


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.14"])
def test_the_constraints_name_every_requirement_and_agree(python):
    exact = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        each = Requirement(line) if line[0] != "#" else None
        if each and (not each.marker or each.marker.evaluate({"python_version": python})):
            assert each.name not in exact and str(each.specifier).startswith("=="), line
            exact[each.name] = str(each.specifier)[2:]
    for each in requirements(ROOT / "requirements.txt"):
        assert each.specifier.contains(exact[each.name]), each


@pytest.mark.slow  # fetches setuptools
def test_the_project_can_be_installed_in_place(first, clone):
    environment = first[1] / ".venv"
    done = subprocess.run([environment / "bin/pip", "install", "--quiet", "--no-deps", "-e", clone],
                          env={**os.environ, "PIP_CONSTRAINT": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check = ("import common.settings.settings, scripts.status, PartOne.main, PartThree.main\n"
             "from importlib.metadata import requires\n"
             "print(*requires('data-parallel-training'), common.settings.settings.__file__)")
    done = run([environment / "bin/python", "-c", check], clone.parent)
    assert done.stdout.split() == [*map(str, requirements(ROOT / "requirements.txt")),
                                   str(clone / "common/settings/settings.py")], done.stderr
