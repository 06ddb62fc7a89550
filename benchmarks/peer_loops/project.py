"""This project's contestant: Part One's own objects and loop, from the flags to the last step."""

import tempfile
from collections.abc import Iterator

from benchmarks.peer_loops.job import Job, StepClock
from common.arithmetic.choice import products
from common.cluster.process_group import one_node
from common.core.precision import Precision
from common.data.loaders import Batch, Loader
from common.options.command_line import parse_command_line
from common.run.opening import open_run
from common.setup import create_loader, create_training, load_datasets
from common.step.gradient_sync import GradientSync
from common.training import train


class TickingLoader:
    """Hands over another loader's batches; a step ends where the next batch is asked for."""

    def __init__(self, loader: Loader, clock: StepClock) -> None:
        self._loader, self._clock = loader, clock

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """The other loader's batches; ticks when the one after each is asked for."""
        for batch in self._loader.batches(epoch, first_iteration):
            yield batch
            self._clock.tick()


def run_project(job: Job, clock: StepClock, *more: str) -> str:
    """Trains as PartOne/main.py does, without its evaluation; says with which flags."""
    flags = ["--precision", job.precision, "--device", job.device, *more]
    with tempfile.TemporaryDirectory() as folder:
        settings, _ = parse_command_line("PartOne", [
            *flags, "--workload", job.workload, "--data-dir", str(job.data_dir), "--batch-size",
            str(job.batch_size), "--max-iterations", str(job.ticks + 1), "--epochs", "1",
            "--checkpoint-every", "0", "--log-every", "1000000", "--output-dir", folder])
        with one_node(settings) as node:
            train_set, _, _ = load_datasets(settings, node)
            loader = create_loader(settings, train_set, node)
            model, criterion, optimizer = create_training(settings, train_set, node)
            seam = GradientSync()
            with open_run("PartOne", "none", settings, node, loader, model, optimizer,
                          seam) as run:
                train(model, criterion, optimizer, TickingLoader(loader, clock), seam, run)
    return f"PartOne {' '.join(flags)}; products {products(model, Precision(job.precision))}"


def run_project_native(job: Job, clock: StepClock) -> str:
    """The same in native arithmetic, where portable is the default."""
    return run_project(job, clock, "--arithmetic", "native")
