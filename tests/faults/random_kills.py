"""Ranks killed at random moments, resumed, and compared with an undisturbed run field by field.

    .venv/bin/python -m tests.faults.random_kills 200 --seed 1 --folder outputs/kills
    .venv/bin/python -m tests.faults.random_kills 200 --seed 2 --json docs/results/kills.json

Each kill is of one rank, of two, of the leader or of all three, in one of twenty cells: a strategy,
a workload and a precision. Compared is all that a run leaves, but for times; see compared_runs.py.
Interrupted, the same command goes on where it was. What a kill with a difference has left is kept.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.records import write_record
from common.core.markdown import markdown_table
from common.core.provenance import code_digest
from tests.faults.compared_runs import RESUMED, differences
from tests.ranks import TIME_LIMIT, Outcome, Program, cluster, error_lines, started
from tests.workload import SMALL, plant

RANKS = 3
FINISHED, LOST, KILLED = 0, 75, -9
SHOWN = 4  # differences of a kill; the file has them all
STRATEGIES = {"gather-scatter": "PartTwo/gather-scatter",
              "overlapped-all-reduce": "PartTwo/overlapped-all-reduce",
              "cross-step-all-reduce": "PartTwo/cross-step-all-reduce",
              "diloco:4": "PartTwo/diloco", "PartThree": "PartThree"}
WORKLOADS = {
    "small": [*SMALL, "--checkpoint-every", "4"],
    "spiral-mlp": ["--workload", "spiral-mlp", "--threads", "1", "--batch-size", "512", "--epochs",
                   "2", "--checkpoint-every", "5"]}
PRECISIONS = ("float32", "bf16")
VICTIMS = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (0, 1, 2))


class Cell(NamedTuple):
    """The training of a case, and its conditions."""

    strategy: str
    workload: str
    precision: str

    def programs(self, folder: Path) -> list[Program]:
        """The ranks of the cell, ready to start, or to resume the run in `folder`."""
        part = STRATEGIES[self.strategy].split("/")[0]
        flags = [*WORKLOADS[self.workload], "--precision", self.precision, "--resume", "auto",
                 "--output-dir", str(folder), "--log-every", "2"]
        flags += ["--sync", self.strategy] if part == "PartTwo" else []
        return cluster(part, RANKS, flags, folder, before=dict.fromkeys(range(RANKS), plant))

    def results(self, folder: Path) -> Path:
        return folder / STRATEGIES[self.strategy]


CELLS = [Cell(*each) for each in product(STRATEGIES, WORKLOADS, PRECISIONS)]


class Kill(NamedTuple):
    """The ranks to kill, and when: `moment` is a fraction of the undisturbed run's seconds."""

    number: int
    cell: Cell
    victims: tuple[int, ...]
    moment: float


def draw(number: int, seed: int) -> Kill:
    """The kill of that number: every twenty of them are one in each cell."""
    chance = random.Random(f"{seed} {number}")
    return Kill(number, CELLS[number % len(CELLS)], chance.choice(VICTIMS), chance.random())


def launch(cell: Cell, folder: Path, victims: tuple[int, ...] = (),
           moment: float = 0.0) -> tuple[list[Outcome], float]:
    """Runs the cell's ranks until all have ended; kills `victims` `moment` seconds after it began.

    Returns how each ended, and how many seconds after it was opened the run's log was complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    programs = cell.programs(folder)
    log = cell.results(folder) / "metrics_rank0.jsonl"
    size = log.stat().st_size if log.exists() else -1
    with started([each.process for each in programs]):
        deadline = time.monotonic() + TIME_LIMIT
        while programs[0].process.is_alive() and size == (
                log.stat().st_size if log.exists() else -1):
            assert time.monotonic() < deadline, programs[0].output()
            time.sleep(0.005)
        begun = time.time()
        if victims:
            time.sleep(moment)
        for rank in victims:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(programs[rank].process.pid or 0, signal.SIGKILL)
        outcomes = [each.outcome() for each in programs]
        return outcomes, log.stat().st_mtime - begun


def undisturbed(cell: Cell, folder: Path) -> tuple[Path, float]:
    """The results of an undisturbed run of this code, and its seconds; run once, and kept."""
    kept = folder / f"undisturbed-{code_digest()}" / "-".join(cell).replace(":", "-")
    if not (kept / "seconds").exists():
        run = fresh(folder)
        outcomes, seconds = launch(cell, run)
        assert [each.code for each in outcomes] == [FINISHED] * RANKS, outcomes
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(run, kept)
        (kept / "seconds").write_text(str(seconds))
    return cell.results(kept), float((kept / "seconds").read_text())


def fresh(folder: Path) -> Path:
    """An empty place, the same for every run: paths are in checkpoints and reports too."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    return run


def tried(kill: Kill, folder: Path) -> dict[str, Any] | None:
    """The outcome of the kill; None if all ranks had ended before it."""
    reference, seconds = undisturbed(kill.cell, folder)
    run = fresh(folder)
    killed, _ = launch(kill.cell, run, kill.victims, kill.moment * seconds)
    if all(each.code == FINISHED for each in killed):
        return None
    found = list(complaints(kill, killed))
    resumed, _ = launch(kill.cell, run)
    found += [f"resumed, rank {rank} ended with {each.code}: {each.output[-500:]}"
              for rank, each in enumerate(resumed) if each.code != FINISHED]
    log = (kill.cell.results(run) / "logs_rank0.txt").read_text()
    place = [found[0] for line in log.splitlines() if RESUMED in line
             and (found := re.search(r"epoch \d+ iteration \d+", line))]
    found += differences(reference, kill.cell.results(run))
    if found:
        shutil.copytree(run, folder / f"kill-{kill.number}", dirs_exist_ok=True)
    return {"number": kill.number, "cell": kill.cell, "victims": kill.victims,
            "moment": kill.moment, "resumed": place[-1:], "differences": found}


def complaints(kill: Kill, outcomes: list[Outcome]) -> Iterator[str]:
    """Complaints about the ranks that were left, each of which should name the lost one."""
    for rank, (code, output) in enumerate(outcomes):
        if code == LOST:
            lines = error_lines(output)
            if len(lines) != 1 or not any(f"rank {each} (" in lines[0] for each in kill.victims):
                yield f"rank {rank} does not name the lost one: {lines}"
        elif code != (KILLED if rank in kill.victims else FINISHED) and code != FINISHED:
            yield f"rank {rank} ended with {code}: {output[-500:]}"


def done(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def described(result: dict[str, Any]) -> str:
    """One line: the kill, where its run went on, and the first differences."""
    what = ", ".join([*result["cell"], f"ranks {result['victims']} at {result['moment']:.2f}",
                      *result["resumed"]])
    found = result["differences"]
    return f"kill {result['number']} ({what}): " + (
        f"{len(found)} differences, {'; '.join(found[:SHOWN])}" if found else "identical")


def summary(kills: list[dict[str, Any]]) -> str:
    """A table of the cells, and a line for each kill that left a difference."""
    rows = []
    for strategy, workload in product(STRATEGIES, WORKLOADS):
        row = [strategy, workload]
        for precision in PRECISIONS:
            here = [each for each in kills if each["cell"] == [strategy, workload, precision]]
            row.append(f"{sum(not each['differences'] for each in here)} of {len(here)}")
        rows.append(row)
    lines = [described(each) for each in kills if each["differences"]]
    same = sum(not each["differences"] for each in kills)
    return "\n".join([markdown_table(["strategy", "workload", *PRECISIONS], rows, texts=2), "",
                      f"{same} of {len(kills)} identical", *lines])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kills", type=int, help="number of kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("outputs/kills"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what came of them")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    path = folder / f"kills-{options.seed}.jsonl"
    tried_before = {each["number"] for each in done(path)}
    number = 0
    while len(done(path)) < options.kills:
        if number not in tried_before and (result := tried(draw(number, options.seed), folder)):
            with path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{len(done(path))}: {described(result)}", flush=True)
        number += 1
    kills = done(path)
    print(summary(kills))
    if options.json:
        write_record(options.json, {
            "n": len(kills), "identical": sum(not each["differences"] for each in kills),
            "seed": options.seed, "code": code_digest(), "ranks": RANKS, "kills": kills})
    return int(any(each["differences"] for each in kills))


if __name__ == "__main__":
    sys.exit(main())
