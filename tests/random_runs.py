"""Runs that never were, drawn at random and logged as a run logs them: for what reads logs.

A Drawn keeps what was drawn, so that what is said of its logs can be held against it.
"""

import json
import random
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from common.core.metrics import Totals
from common.core.progress import PHASES, Position
from common.core.trace_file import pack_trace
from common.core.world import World
from common.run.run_log import RunLog, Step
from tests.recorded import settings

NAMES = ("PartOne", "PartTwo/gather-scatter", "PartTwo/all-reduce", "PartTwo/overlapped-all-reduce",
         "PartTwo/local-sgd", "PartTwo/mine.Mine", "PartThree", "again/PartThree")
PER_EPOCH, BATCH, GRADIENTS = 4, 60, 40_000  # bytes
LENGTH = 1000  # microseconds of a traced step
BACKWARD, UPDATE = 400, 900  # of them, when they begin
Rows = dict[tuple[int, int], dict[int, dict[str, Any]]]


@dataclass
class Drawn:
    """A drawn run: its steps by place and rank, and how it ended. `loads` is for a trace."""

    name: str
    ranks: int
    told: dict[str, Any]
    cores: int
    hosts: dict[int, str]
    rows: Rows
    digest: str = ""
    score: float | None = None
    matrix: list[list[int]] = field(default_factory=list)
    failed: int = 0
    ended: bool = False
    counted: int | None = None
    trace: dict[str, Any] = field(default_factory=dict)
    loads: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def short(self) -> str:
        return self.name.replace("PartTwo/", "").replace("PartThree", "DDP")

    @property
    def losses(self) -> dict[tuple[int, int], float]:
        """Means over each global batch, as far as its ranks' logs are there."""
        return {place: float(sum(step["sum"] for step in row.values())
                             / sum(step["samples"] for step in row.values()))
                for place, row in self.rows.items()}

    @property
    def durations(self) -> list[float]:
        """Seconds of each iteration's slowest rank, without the first iteration."""
        return [max(step["duration"] for step in row.values())
                for row in list(self.rows.values())[1:]]


def draw_runs(draw: random.Random, folder: Path) -> dict[str, Drawn]:
    """One to five runs, by name, whose logs lie in `folder` afterwards."""
    common = {"precision": draw.choice(["float32", "float32", "float64", "bf16"]),
              "batch_norm": draw.choice(["local", "synchronised"]), "batch_size": BATCH,
              "epochs": 10, "max_iterations": draw.choice([None, 8]),
              "virtual_nodes": draw.choice([None, None, 4])}
    curve = _curve(draw)
    steps = draw.choice([1, 2, 3, 5, 9, 14, 25])
    runs = [_draw_run(draw, name, common, curve, steps)
            for name in draw.sample(NAMES, draw.randint(1, 5))]
    for run in runs:
        _write(draw, folder / run.name, run)
    return {run.name: run for run in runs}


def _curve(draw: random.Random) -> list[float]:
    start, slope = draw.choice([0.01, 1.0, 2.3]), draw.choice([-0.02, 0.0, 0.03])
    return [max(1e-4, start * (1 + slope * step + draw.choice([0, 0.1]) * draw.random()))
            for step in range(30)]


def _draw_run(draw: random.Random, name: str, common: dict[str, Any], curve: list[float],
              steps: int) -> Drawn:
    ranks = 1 if name == "PartOne" else draw.randint(1, 5)
    changed = draw.choice([{}] * 8 + [{"seed": 2}, {"wire": "bf16"}, {"learning_rate": 0.5}])
    steps = max(1, steps + draw.choice([0, 0, 0, -1, 1]))
    gap = draw.choice([0.0, 0.0, 1e-12, 1e-8, 2e-7, 1e-3, 0.4])
    losses = [max(0.0, loss + gap * draw.uniform(-1, 1)) for loss in curve[:steps]]
    own, spread, sync = draw.choice([2e-4, 0.3]), draw.choice([0.0, 0.01, 0.3]), draw.choice(
        [0.0, 0.0005, 0.02, 0.5])
    slow = {rank: draw.choice([0.0, 0.0, 0.05, 0.6]) for rank in range(ranks)}
    sends = draw.choice([0, 4, 250, 40_000, 3 * 10**6]) * (ranks > 1)
    resumes = draw.random() < 0.2  # on as many ranks or others
    before = draw.randint(1, 5) if resumes and name != "PartOne" else ranks
    at = draw.randrange(steps) if resumes else 0
    rows = {(1 + step // PER_EPOCH, step % PER_EPOCH): _row(
        draw, before if step < at else ranks, losses[step], own * (6 if step == 0 else 1), spread,
        sync, slow, sends if draw.random() < 0.98 else 0) for step in range(steps)}
    hosts = {rank: draw.choice(["a", "a", "b"])
             for rank in range(max(ranks, before if at else 0))}
    run = Drawn(name, ranks, settings(**common | changed), draw.choice([1, 2, 8]), hosts, rows)
    run.told["max_iterations"] = common["max_iterations"] and max(common["max_iterations"], steps)
    if draw.random() < 0.8:
        run.ended, run.digest = True, draw.choice(["5eed0001"] * 3 + ["5eed0002"])
        run.score = draw.choice([0.1, 0.5004, 0.5, float("nan"), 1.0])
        run.matrix = draw.choice([[[8, 2], [5, 5]], [[9]], [[0, 0], [1, 9]], [[5, 0], [0, 5]],
                                  [[3, 1], [1, 3]]])
    elif draw.random() < 0.5:
        run.failed = draw.choice([3, 75])
    run.counted = at  # until _write has used it
    return run


def _row(draw: random.Random, ranks: int, loss: float, own: float, spread: float, sync: float,
         slow: dict[int, float], sends: int) -> dict[int, dict[str, Any]]:
    row, moved = {}, Fraction(draw.randint(0, 5), 7)
    for rank in range(ranks):
        samples = BATCH * (rank + 1) // ranks - BATCH * rank // ranks
        work = own * (1 + slow.get(rank, 0.0)) * max(0.1, draw.gauss(1, spread))
        seconds = {"data": 0.05 * work, "forward": 0.3 * work, "backward": 0.6 * work,
                   "sync": sync * own, "update": 0.05 * work}
        row[rank] = {
            "samples": samples, "seconds": {name: round(seconds[name], 6) for name in PHASES},
            "duration": round(work + sync * own, 6),
            "sum": Fraction(loss) * samples + (ranks > 1) * moved * ((rank == 0) - (rank == 1)),
            "right": draw.randint(0, samples), "bytes": sends * (3 if rank == 0 else 1)}
    return row


def _write(draw: random.Random, folder: Path, run: Drawn) -> None:
    """Logs it with RunLog, resumed where it was; then takes away what may be missing."""
    at, run.counted = run.counted or 0, None
    places = list(run.rows)
    traced = draw.randrange(len(places)) if draw.random() < 0.3 else None
    if at:
        before = len(run.rows[places[0]])
        later = {place: {rank: dict(next(iter(run.rows[places[0]].values()))) for rank in
                         range(before)} for place in places[at:at + 2]}  # trained again
        for rank in range(before):
            _log(folder, run, rank, before, Position(), [*places[:at], *later],
                 {**run.rows, **later}, None, False)
    for rank in range(run.ranks):
        begin = Position(*places[at], at) if at else Position()
        _log(folder, run, rank, run.ranks, begin, places[at:], run.rows, traced, True)
    for rank in range(1, run.ranks):
        if draw.random() < 0.05:
            (folder / f"metrics_rank{rank}.jsonl").unlink()
            for row in run.rows.values():
                row.pop(rank, None)
            run.hosts.pop(rank, None)
    if run.ended is False and not run.failed and draw.random() < 0.3:  # killed while it wrote
        with (folder / "metrics_rank0.jsonl").open("a") as file:
            file.write('{"event": "step", "epo')
    if traced is not None and traced >= at:
        run.counted = run.rows[places[traced]][0]["bytes"]
        _draw_trace(draw, run)
        path = folder / "traces/trace_all_epoch1.json.gz"
        path.parent.mkdir()
        path.write_bytes(pack_trace(run.trace))


def _log(folder: Path, run: Drawn, rank: int, ranks: int, begin: Position, places: list,
         rows: Rows, traced: int | None, is_last: bool) -> None:
    path = folder / f"metrics_rank{rank}.jsonl"
    with RunLog(folder / f"logs_rank{rank}.txt", path, World(rank, ranks), begin,
                log_every=10**6) as log:
        log.say = lambda *_: None
        log.begin(run.told, world_size=ranks, position=begin, iterations_per_epoch=PER_EPOCH,
                  resume=f"python3 {run.name}/main.py --resume auto",
                  ran_on={"threads": 1, "device": "cpu", "convolutions": "library"})
        for number, place in enumerate(places, begin.step):
            step = rows[place][rank]
            log.step(Step(Position(*place, number), Totals(
                step["sum"], Fraction(step["right"]), step["samples"]), step["duration"],
                step["seconds"], step["bytes"], 0.1))
            if number == traced:
                log.event("operators", rows=[{"name": "aten::mm", "calls": 1, "seconds": 0.1,
                                              "share": 1.0}])
            if place[1] == PER_EPOCH - 1:
                log.epoch(place[0], Totals(Fraction(1), Fraction(30), BATCH))
        if is_last and run.ended:
            log.evaluation(1.25, run.score, weights=run.digest, confusion_matrix=run.matrix,
                           class_names=["ant", "bee"][:len(run.matrix)])
            log.event("end")
        if is_last and run.failed:
            log.event("failed", why="rank 1 is lost", exit_code=run.failed)
    _rewrite(path, {"host": run.hosts[rank], "cores": run.cores})


def _rewrite(path: Path, changes: dict[str, Any]) -> None:
    """Rewrites the start events as those of another machine."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(
        event | changes if event["event"] == "start" else event) + "\n" for event in events))


def _draw_trace(draw: random.Random, run: Drawn) -> None:
    """One step of all ranks: messages of which all, some or none are there, and arithmetic."""
    events, ranks = [], run.ranks
    share = draw.choice([1.0, 1.0, 1.0, 0.4, 0.0])
    sent = (run.counted or draw.choice([0, 60_000])) * share
    busy, moving = np.zeros((2, ranks, LENGTH), bool)
    for rank in range(ranks):
        for name, start, end in (("data", 0, 50), ("forward", 50, BACKWARD),
                                 ("backward", BACKWARD, 880), ("sync", 880, UPDATE),
                                 ("update", UPDATE, LENGTH)):
            events.append(_event(rank, 0, name, start, end))
        for name in ("aten::mm", "autograd::engine::evaluate_function: OursBackward"):
            start = draw.randint(60, 700)
            busy[rank, start:start + 120] = True
            events.append(_event(rank, 5, name, start, start + 120, cat="cpu_op"))
        events.append(_event(rank, 6, "aten::add_", 0, LENGTH, cat="cpu_op"))  # a lane's thread
        events.append(_event(rank, 5, "torch::autograd::AccumulateGrad", 849, 850,
                             [100, GRADIENTS // 400], cat="cpu_op"))
        for part in draw.choice([[1.0], [0.25, 0.75]]) if sent and ranks > 1 else ():
            start = draw.choice([draw.randint(100, 880), draw.randint(BACKWARD, 500)])
            end = min(LENGTH, start + draw.choice([20, 100, 400]))
            moving[rank, start:end] = True
            events.append(_event(rank, 9, "gloo:all_reduce", start, end, [round(part * sent)]))
    run.trace = {"traceEvents": events}
    run.loads = {"busy": busy, "moving": moving}


def _event(rank: int, track: int, name: str, start: int, end: int, shape: list[int] | None = None,
           **more: str) -> dict[str, Any]:
    args = {"Input Dims": [shape], "Input type": ["float"]} if shape else {}
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": start, "dur": end - start,
            "args": args, **more}
