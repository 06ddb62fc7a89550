"""Part One: one node trains alone.

    python3 PartOne/main.py --workload digits-vgg11
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)  # .venv's Python, if this one has no torch

from common.cluster.program import run_program
from common.start import start

PART = "PartOne"


def main() -> None:
    settings, world = start(PART)
    # torch is imported only now: --help and a mistyped flag have been answered already
    from common.banner import announce
    from common.cluster.process_group import one_node
    from common.evaluation import evaluate
    from common.report import compare_runs, finish_run
    from common.run.kept_arithmetic import prepare_runs
    from common.run.opening import open_run
    from common.setup import create_loader, create_training, load_datasets
    from common.step.virtual_nodes import sync_of_one_rank
    from common.training import train

    with one_node(settings) as node:
        convolutions = prepare_runs(PART, settings, node)
        announce(PART, settings, node, convolutions)
        train_set, validation_set, test_set = load_datasets(settings, node)
        loader = create_loader(settings, train_set, node)
        runs = []
        for strategy in settings.sync:
            model, criterion, optimizer = create_training(settings, train_set, node,
                                                          convolutions)
            gradient_sync = sync_of_one_rank(settings.virtual_nodes)
            gradient_sync.prepare(model, optimizer)
            with open_run(PART, strategy.label, settings, node, loader, model, optimizer,
                          gradient_sync) as run:
                train(model, criterion, optimizer, loader, gradient_sync, run, validation_set)
                finish_run(run, evaluate(run, criterion, test_set))
            runs.append(run)
        compare_runs(runs)


if __name__ == "__main__":
    run_program(main)
