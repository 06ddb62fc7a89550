"""One turn of benchmarks/peers.py, in a process of its own.

    python3 benchmarks/peer_loops/worker.py --row course-float32 --workload digits-vgg11 \
        --batch-size 32 --steps 3 --output turn.json
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json
from collections.abc import Callable
from importlib import import_module

import torch

from benchmarks.peer_loops.job import Job, StepClock
from common.cluster.program import run_program
from common.core.failures import UsageError


def contestant(name: str) -> Callable[[Job, StepClock], str]:
    """The loop of a row of that name; imports only what it needs."""
    modules = {"project": "project", "project_native": "project", "course": "textbook"}
    module = import_module(f"benchmarks.peer_loops.{modules.get(name, 'libraries')}")
    return getattr(module, f"run_{name}")


def take_turn(row: str, job: Job) -> dict:
    """Seconds of each timed step, threads and settings of one contestant's turn."""
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32, for every contestant
    clock = StepClock(job)
    settings = contestant(row.split("-")[0])(job, clock)
    if not clock.is_done:
        raise UsageError(f"{row} has ended after {len(clock.ends)} of {job.ticks} steps: an epoch "
                         "has too few batches for --steps")
    return {"seconds": clock.seconds(), "threads": torch.get_num_threads(), "settings": settings}


def main() -> None:
    parser = argparse.ArgumentParser(description="One turn of benchmarks/peers.py.")
    parser.add_argument("--row", required=True, help="LOOP-PRECISION")
    parser.add_argument("--workload", default="cifar10-vgg11")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    job = Job(options.workload, options.data_dir, options.batch_size, options.steps,
              options.row.partition("-")[2], options.device)
    options.output.write_text(json.dumps(take_turn(options.row, job)))


if __name__ == "__main__":
    run_program(main)
