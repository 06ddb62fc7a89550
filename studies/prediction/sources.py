"""Measured cells for the model: from the benchmark's grid, or from runs and their preflight.

    python3 scripts/predict.py outputs --preflight outputs/preflight.json --nodes 8 --rate 300mbit
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from common.core.failures import DataError, UsageError
from common.core.files import read_json
from common.core.progress import PHASES
from common.reporting.recorded_run import RecordedRun, find_runs
from studies.prediction.forms import sent
from studies.prediction.grid import (
    COMPUTE_ONLY,
    PART_THREE,
    Cell,
    TurnRecord,
    cell,
    load_grid,
    variant,
)
from studies.prediction.model import STRATEGIES, Machine

PROFILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "sync_grid.json"
BOX_LATENCY = 15e-6  # half a round trip between two namespaces, in seconds
OWN = tuple(phase for phase in PHASES if phase != "sync")


class Source(NamedTuple):
    """The cells that the model is calibrated on, and the conditions of their measurement."""

    cells: list[Cell]
    machine: Machine
    batch: int
    latency: float
    words: str


def read_source(paths: Sequence[Path], preflight: Path | None) -> Source:
    """A grid's file, or folders of runs. Raises DataError or UsageError for anything else."""
    if len(paths) == 1 and paths[0].is_file():
        return _grid(paths[0])
    runs = find_runs(paths)
    file = preflight or next((path / "preflight.json" for path in paths
                              if (path / "preflight.json").exists()), None)
    if file is None:
        raise UsageError("runs say how long averaging took, but not over what links: give "
                         "--preflight FILE, which scripts/preflight.py wrote on that cluster")
    return _runs(runs, read_links(file), file)


def _grid(path: Path) -> Source:
    grid = load_grid(path)
    made_on = grid["made_on"]
    machine = Machine(made_on["cores"], made_on["machines"], made_on["threads"])
    words = (f"{path.name}, {made_on['processor']}, {made_on['cores']} cores for all nodes, "
             f"{made_on['precision']}")
    return Source(grid["cells"], machine, made_on["batch"], BOX_LATENCY, words)


class Links(NamedTuple):
    """The median link of a preflight, in bytes and seconds, and the number of machines."""

    bytes_per_second: float
    latency: float
    machines: int


def read_links(path: Path) -> Links:
    """The median link of a preflight. Raises DataError for another file, or one without links."""
    try:
        record = read_json(path)
        links = [link for row in record["links"] for link in row if link["bandwidth"]]
        return Links(median(link["bandwidth"] for link in links),
                      median(link["round_trip"] for link in links) / 2,
                      len({rank["machine"] for rank in record["ranks"]}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no preflight with links that scripts/preflight.py wrote") from error


def _runs(runs: Sequence[RecordedRun], links: Links, preflight: Path) -> Source:
    for run in runs:
        if not run.settings["workload"].endswith("vgg11"):
            raise UsageError(f"{run.name} trained {run.settings['workload']}: when gradients are "
                             "ready is known of VGG-11 only; for any other workload "
                             "scripts/choose_strategy.py measures on the cluster itself")
    timed = [run for run in runs if run.mean and run.ranks > 1]
    cells = [_cell([run for run in timed if run.ranks == ranks], links)
             for ranks in sorted({run.ranks for run in timed})]
    if not cells:
        raise DataError("a prediction needs a run on several ranks, of two iterations or more")
    start = timed[0].start
    machine = Machine(start["cores"], links.machines, start["ran_on"]["threads"])
    words = (f"{len(timed)} runs and {preflight.name}, {start['processor']}, links of "
             f"{links.bytes_per_second * 8 / 1e6:.0f} Mbit/s, {1e6 * links.latency:.0f} µs")
    return Source(cells, machine, timed[0].settings["batch_size"], links.latency, words)


def _cell(runs: Sequence[RecordedRun], links: Links) -> Cell:
    """The runs on one number of ranks, as the benchmark would have written them."""
    alone = [run for run in runs if not run.overlaps_sync]
    if not alone:
        raise DataError(f"all runs on {runs[0].ranks} ranks average during backward, so their "
                        "averaging cannot be told from computing: add one with --sync all-reduce")
    # What the busiest rank sent says how large the gradient is.
    sizes, ready = _profile(max(max(run.bytes_sent.values()) / sent(run.name.rpartition("/")[2],
                                                                    run.ranks) for run in alone))
    computing = variant([[_own_work(step["seconds"]) for step in ranks.values()]
                         for run in alone for ranks in list(run.steps.values())[1:]])
    return cell(runs[0].ranks, links.bytes_per_second, sizes,
                [computing["phases"]["backward"] * at for at in ready],
                {COMPUTE_ONLY: computing, **{_strategy(run): {"steps": run.durations}
                                             for run in runs}})


def _own_work(seconds: dict[str, float]) -> TurnRecord:
    """A rank's step without averaging."""
    return {"step": sum(seconds[phase] for phase in OWN), "phases": seconds}


def _strategy(run: RecordedRun) -> str:
    if "PartThree" in run.name:
        return PART_THREE
    name, wire = run.name.rpartition("/")[2], run.settings.get("wire", "float32")
    return name if wire == "float32" or name not in STRATEGIES else f"{name}, {wire} wire"


def _profile(size: float) -> tuple[list[float], list[float]]:
    """VGG-11's tensors, `size` bytes in all, and when backward has each, 0 to 1 of it."""
    vgg: Cell = load_grid(PROFILE)["cells"][0]
    scale = size / sum(vgg["gradient_bytes"])
    return ([scale * each for each in vgg["gradient_bytes"]],
            [at / max(vgg["ready"]) for at in vgg["ready"]])
