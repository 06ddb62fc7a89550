"""Whole runs of the literal mains on the small workload, and what they have come to.

    launch(Case("all-reduce", 2, "memory", 4, 0), folder, "no")
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from common.core.events import read_events
from common.run import checkpoint_file
from tests.ranks import Program, cluster, program, run_programs
from tests.workload import SMALL, plant

STEPS = 18
STATE = ("epoch", "loss", "position", "totals", "validation_losses", "data")
RUNS = {"PartOne": "PartOne", "gather-scatter": "PartTwo/gather-scatter",
        "all-reduce": "PartTwo/all-reduce", "PartThree": "PartThree"}
MORE_RUNS = {name: f"PartTwo/{name}" for name in (
    "overlapped-all-reduce", "gather-scatter-pipelined", "reduce-scatter", "local-sgd", "diloco",
    "cross-step-all-reduce")}
FOLDERS = {**RUNS, **MORE_RUNS}


class Case(NamedTuple):
    """A run to kill, its number of ranks, after which step, and how often it saves."""

    run: str
    world_size: int
    loader: str
    every: int
    kill_at: int


def programs_of(case: Case, folder: Path, resume: str, before: Mapping[int, Callable[[], None]],
                more: Sequence[str] = ()) -> list[Program]:
    """The literal main of the case's part on all its ranks, ready to start.

    `before` is what a rank calls first, by rank; `more` are flags.
    """
    part = FOLDERS[case.run].split("/")[0]
    flags = [*SMALL, "--output-dir", str(folder), "--checkpoint-every", str(case.every), "--resume",
             resume, "--loader", "workers:1" if case.loader == "workers" else case.loader]
    flags += ["--sync", case.run, *more] if part == "PartTwo" else more
    if part == "PartOne":
        return [program(part, flags, folder, "rank0", before=before[0])]
    return cluster(part, case.world_size, flags, folder, before=before)


def launch(case: Case, folder: Path, resume: str, world_size: int | None = None, before=plant,
           more=(), code: int = 0) -> None:
    """Runs the case on all its ranks, or on another number; each must end with `code`."""
    case = case._replace(world_size=world_size or case.world_size)
    programs = programs_of(case, folder, resume, dict.fromkeys(range(case.world_size), before),
                           more)
    outcomes = run_programs(programs)
    assert [outcome.code for outcome in outcomes] == [code] * len(programs), outcomes


class End(NamedTuple):
    """The results of a finished run."""

    weights: dict
    optimizer: dict
    losses: list[list[tuple]]
    epochs: list[tuple]
    state: dict  # of the checkpoint, where the run stands


def end_of(case: Case, folder: Path, world_size: int | None = None) -> End:
    run = folder / FOLDERS[case.run]
    contents = checkpoint_file.read(run / "checkpoints" / "Epoch_2.pt")
    logs = [run / f"metrics_rank{rank}.jsonl" for rank in range(world_size or case.world_size)]
    losses = [[(event["epoch"], event["iteration"], event["loss"])
               for event in read_events(log, "step")] for log in logs]
    epochs = [(event["epoch"], event["loss"], event["accuracy"])
              for event in read_events(logs[0], "epoch")]
    return End(contents["model_state_dict"], contents["optimizer_state_dict"]["state"], losses,
               epochs, {name: contents[name] for name in STATE})


def same_bits(one: End, other: End) -> bool:
    tensors = [(one.weights[name], other.weights[name]) for name in one.weights]
    tensors += [(state["momentum_buffer"], other.optimizer[key]["momentum_buffer"])
                for key, state in one.optimizer.items()]
    return (all(torch.equal(a, b) for a, b in tensors) and one.losses == other.losses
            and one.epochs == other.epochs and one.state == other.state)
