"""Runs a program of this project for a benchmark."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.core.failures import DataError
from common.core.provenance import ROOT


def run_to_end(command: Sequence[str | Path], what: str) -> None:
    """Runs `command` in the project's folder. Raises DataError with its last line if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise DataError(f"{what} ended with exit code {done.returncode}: {' '.join(last)}")
