"""Where the bottleneck goes as loader processes are added: a table of runs that differ in those.

    for n in 0 1 2 4; do python3 PartOne/main.py --workload mnist-mlp --loader workers \\
        --num-workers $n --max-iterations 200 --output-dir outputs/worker-sweep/$n; done
    python3 scripts/worker_table.py outputs/worker-sweep

Each folder's name is its number of workers (scripts/slurm/worker_sweep.sbatch names them so); any
other name, such as "memory", comes last. "data" is how long the training loop waits for its next
batch: while that is much, more workers help; once it is next to nothing, arithmetic is the
bottleneck, and workers only take its cores away.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)

import argparse
from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from common.cluster.program import run_program
from common.core.events import read_events
from common.core.failures import DataError
from common.core.progress import PHASES

# Filling the workers' queues is start-up, not the steady state that is asked for.
LEFT_OUT = 5
SHOWN = [phase for phase in PHASES if phase != "sync"]
HEAD = ("workers", *(f"{phase}, ms" for phase in SHOWN), "iteration, ms (quartiles)", "n",
        "samples/s", "waits for data")


def row(name: str, steps: Sequence[dict]) -> tuple[str, ...]:
    """A line of the table: medians over the steps of one run, so that other work disturbs less.

    How long the loop waits for data is the one total: workers deliver in bursts.
    """
    first, middle, third = quantiles([1000 * step["duration"] for step in steps])
    waited = sum(step["seconds"]["data"] for step in steps)
    return (name, *(f"{1000 * median(step['seconds'][phase] for step in steps):.2f}"
                    for phase in SHOWN),
            f"{middle:.2f} ({first:.2f}–{third:.2f})", str(len(steps)),
            f"{1000 * median(step['samples'] for step in steps) / middle:.0f}",
            f"{100 * waited / sum(step['duration'] for step in steps):.0f} %")


def table(folder: Path) -> list[tuple[str, ...]]:
    """The rows of all runs in `folder`, by number of workers. Raises DataError for none."""
    runs = {path.parent.parent.name: list(read_events(path, "step"))[LEFT_OUT:]
            for path in folder.glob("*/PartOne/metrics_rank0.jsonl")}
    rows = [row(name, runs[name]) for name in sorted(runs, key=_order) if len(runs[name]) > 1]
    if not rows:
        raise DataError(f"{folder} holds no run of more than {LEFT_OUT + 1} steps in "
                        "<workers>/PartOne/metrics_rank0.jsonl")
    return rows


def _order(name: str) -> tuple[bool, int]:
    return not name.isdigit(), int(name) if name.isdigit() else 0


def bottleneck(rows: Iterable[tuple[str, ...]]) -> str:
    """One sentence: the fewest workers with which the loop hardly waits, if there are such."""
    waits = [(each[0], float(each[-1].split()[0])) for each in rows if each[0].isdigit()]
    enough = [name for name, share in waits if share < 10]
    if enough:
        return f"with {enough[0]} workers the loop waits for data less than a tenth of its time"
    least = min(waits, key=lambda each: each[1], default=None)
    return (f"even with {least[0]} workers the loop waits for data {least[1]:.0f} % of its time"
            if least else "no run had workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each number of workers")
    rows = table(parser.parse_args().folder)
    for cells in (HEAD, ["---:"] * len(HEAD), *rows):
        print("| " + " | ".join(cells) + " |")
    print(f"\n{bottleneck(rows)}")


if __name__ == "__main__":
    run_program(main)
