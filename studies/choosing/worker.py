"""One rank of benchmarks/sync.py: turns of every variant on VGG-11 and random images.

    python3 studies/choosing/worker.py --master-ip IP --num-nodes N --rank R \
        --variants '["compute only"]' --rounds 3 --steps 2 --output FILE

All other flags are a run's. The leader writes the cell.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
import json

import numpy as np

from common.cluster.process_group import process_group
from common.cluster.program import run_program
from common.data.dataset import Dataset, make_dataset
from common.options.command_line import parse_command_line
from studies.choosing.measuring import Contestant, measure, measured_cell
from studies.choosing.variants import VARIANTS

IMAGE, CLASSES = (32, 32, 3), "0123456789"
WARM_UP_STEPS = 2


def random_images(samples: int) -> Dataset:
    """Images and labels at random, the same on every rank."""
    random = np.random.default_rng(1)
    return make_dataset(random.integers(0, 256, (samples, *IMAGE), np.uint8),
                        random.integers(0, len(CLASSES), samples), CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", default=json.dumps(list(VARIANTS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    options, rest = parser.parse_known_args()
    settings, world = parse_command_line("PartTwo", rest)
    images = random_images(settings.batch_size)
    with process_group(world, settings) as node:
        contestants = [Contestant(name, settings, images, node)
                       for name in json.loads(options.variants)]
        for each in contestants:
            for _ in range(WARM_UP_STEPS):
                each.warm_up()
        rounds = measure(contestants, [options.steps] * len(contestants), options.rounds, node)
    if world.is_leader:
        options.output.write_text(json.dumps(measured_cell(world.size, contestants, rounds)))


if __name__ == "__main__":
    run_program(main)
