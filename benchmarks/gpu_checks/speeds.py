"""Several turns of benchmarks/peers.py in one process, on a device of choice.

    python3 benchmarks/gpu_checks/speeds.py --turns course-float32 project-bf16 --device cuda \
        --output speeds.json

A turn that fails is written down, and the others are taken all the same; the exit code is 1 then.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json

import torch

from benchmarks.peer_loops.job import Job
from benchmarks.peer_loops.resident import allow_tf32
from benchmarks.peer_loops.worker import take_turn
from common.cluster.program import run_program
from common.core.failures import first_line
from common.options.flag_parser import SentenceParser


def measured(turn: str, options: argparse.Namespace) -> dict:
    """Images a second, megabytes on the GPU and the settings of a turn; or how it failed."""
    job = Job(options.workload, options.data_dir, options.batch_size, options.steps,
              turn.partition("-")[2], options.device)
    is_cuda = options.device != "cpu"
    allow_tf32(job)
    torch.compiler.reset()
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = take_turn(turn, job, torch.cuda.synchronize if is_cuda else lambda: None)
    except Exception as error:  # whatever a library raises: the other turns are worth taking
        return {"failed": f"{type(error).__name__}: {first_line(error)}"}
    megabytes = torch.cuda.max_memory_allocated() / 1e6 if is_cuda else None
    return {"images_per_second": job.batch_size * job.steps / sum(found["seconds"]),
            "device_megabytes": megabytes, "settings": found["settings"]}


def main() -> None:
    parser = SentenceParser(description="Turns of benchmarks/peers.py on a device.")
    parser.add_argument("--turns", nargs="+", required=True, metavar="LOOP-PRECISION")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workload", default="cifar10-vgg11")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    turns: dict[str, dict] = {}
    for turn in options.turns:
        turns[turn] = measured(turn, options)
        print(turn, turns[turn], flush=True)
        options.output.write_text(json.dumps(turns))  # at once: a time limit may end the process
    sys.exit(any("failed" in turn for turn in turns.values()))


if __name__ == "__main__":
    run_program(main)
