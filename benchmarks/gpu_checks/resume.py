"""Kills a run of Part One, resumes it, and compares its weights with those of a whole run.

    python3 benchmarks/gpu_checks/resume.py outputs/killed --workload digits-vgg11 --device cuda

Flags after the folder go to PartOne/main.py. Ends with exit code 1 where a bit differs.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import subprocess
import time

from common.cluster.program import run_program
from common.core.failures import DataError


def command(folder: Path, *flags: str) -> list[str | Path]:
    return [sys.executable, "PartOne/main.py", "--output-dir", folder, *flags]


def kill_at_a_checkpoint(folder: Path, *flags: str) -> None:
    """Starts a run, and kills it when its first checkpoint stands."""
    checkpoints = folder / "PartOne/checkpoints"
    with subprocess.Popen(command(folder, *flags), cwd=ROOT) as run:
        while run.poll() is None and not list(checkpoints.glob("Epoch_*.pt")):
            time.sleep(0.02)
        if run.poll() is not None:
            raise DataError("the run has ended before it could be killed: give it more iterations")
        run.kill()


def main() -> None:
    folder, flags = Path(sys.argv[1]).resolve(), sys.argv[2:]
    subprocess.run(command(folder / "whole", *flags), cwd=ROOT, check=True)
    kill_at_a_checkpoint(folder / "killed", *flags)
    subprocess.run(command(folder / "killed", *flags, "--resume", "auto"), cwd=ROOT, check=True)
    compared = subprocess.run([sys.executable, "scripts/compare.py", folder, "--one-digest"],
                              cwd=ROOT)
    sys.exit(compared.returncode)


if __name__ == "__main__":
    run_program(main)
