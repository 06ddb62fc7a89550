"""pip links to this folder, or is refused in a sentence; a release has one name.

Mutations that turn this red: setuptools.build_meta as the backend in pyproject.toml; another
version in CITATION.cff.
"""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.clone import fresh_clone
from tests.facts import says
from tests.ranks import ROOT

WITHOUT_INDEX = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return fresh_clone(tmp_path_factory.mktemp("installing") / "clone")


@pytest.mark.parametrize("command", [["install"], ["wheel"]])
def test_a_copy_is_refused_before_anything_is_downloaded(command, clone, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, "--no-deps", str(clone)], cwd=tmp_path,
        capture_output=True, text=True, timeout=100, env=WITHOUT_INDEX)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert says(said, "pip install -r requirements.txt", "pip install -e")


def test_a_link_to_the_folder_is_made(clone, tmp_path):
    """A call as from `pip install -e .`, once it has the setuptools that the backend asks for."""
    if int(version("setuptools").split(".")[0]) < 77:  # not imported: it replaces distutils
        pytest.skip("setuptools is older than the backend needs")
    code = ("import sys; sys.path.insert(0, 'scripts'); import build_backend as backend\n"
            "assert backend.get_requires_for_build_editable() == ['setuptools>=77']\n"
            f"print(backend.build_editable({str(tmp_path)!r}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / done.stdout.splitlines()[-1]).exists()


def test_a_release_has_one_version():
    said = [re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)[1] for path, pattern in (
        ("pyproject.toml", r'^version = "(.+)"'), ("CITATION.cff", r'^version: "(.+)"'),
        ("docs/changelog.md", r"the tag `v(.+)`"))]
    assert len(set(said)) == 1
