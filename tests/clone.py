"""A fresh clone after the quick start, and a Python that has nothing: what a newcomer has."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.ranks import ROOT


def fresh_clone(folder: Path) -> Path:
    """Copies the tree under test into `folder`, without what git ignores; returns `folder`."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", *ignored))
    return folder


def link_environment(clone: Path) -> None:
    """Gives the clone the environment that runs the tests, as its .venv."""
    (clone / ".venv").symlink_to(sys.prefix)


def bare_python(folder: Path) -> Path:
    """Makes an interpreter of the same version without any package; returns its bin/python3."""
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", folder],
                   check=True)
    return folder / "bin" / "python3"
