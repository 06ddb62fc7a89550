"""Logs of runs that never were: known seconds, losses and bytes, for what reads logs."""

import json
from pathlib import Path

GRADIENT = 1_000_000  # bytes
SECONDS = {"PartOne": (1, 2.0, 0.0, 0), "PartTwo/gather-scatter": (4, 1.0, 0.9, 3),
           "PartTwo/all-reduce": (4, 1.0, 0.0, 1.5), "PartThree": (4, 0.95, 0.0, 1.5)}
MATRIX = [[8, 2], [5, 5]]


def settings(**changes) -> dict:
    """The flags in a start event."""
    return {"workload": "digits-vgg11", "data_dir": "data", "output_dir": "outputs", "epochs": 2,
            "batch_size": 100, "max_iterations": None, "loader": "memory",
            "sync": ["all-reduce"], "seed": 1, **changes}


def write_run(folder: Path, ranks: int = 1, steps: int = 4, own: float = 1.0, sync: float = 0.0,
              root_sends: float = 0, ended: bool = True, slow: dict[int, float] | None = None,
              loss: float = 2.0, host: str = "node", confusion: list[list[int]] = MATRIX,
              digest: str = "5eed1234", **changes) -> Path:
    """One log a rank: `own` seconds of work and `sync` of averaging a step; two steps an epoch.

    A step's loss is `loss` / (1 + step) on rank 0, and 1 more on each rank after it. Rank 0 sends
    `root_sends` gradients, the others one. `slow` adds seconds of own work to a rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        events = [{"event": "start", "time": 1.8e9, "host": host, "processor": "abacus",
                   "cores": 2, "world_size": ranks, "position": [1, 0, 0],
                   "iterations_per_epoch": 2, "settings": settings(**changes),
                   "resume": f"python3 {folder.name}/main.py --resume auto",
                   "ran_on": {"threads": 1, "device": "cpu", "python": "3.11", "torch": "2.15",
                              "numpy": "2", "convolutions": "library winograd-4 winograd-4"}}]
        more = (slow or {}).get(rank, 0.0)
        for step in range(steps):
            events.append(_step(step, rank, own + more, sync, loss, root_sends, ranks))
            if step % 2:
                events += [{"event": "epoch", "epoch": 1 + step // 2, "loss": 1.5,
                            "accuracy": 0.5, "samples": 200},
                           {"event": "memory", "resident": 1_000_000 * (500 + rank)}]
        if ended:
            events += [{"event": "evaluation", "test_loss": 1.25, "test_accuracy": 0.65,
                        "weights": digest, "class_names": ["ant", "bee"],
                        "confusion_matrix": confusion},
                       {"event": "end"}]
        (folder / f"metrics_rank{rank}.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events))
    return folder


def _step(step: int, rank: int, own: float, sync: float, loss: float, root_sends: float,
          ranks: int) -> dict:
    seconds = {"data": 0.0, "forward": 0.25 * own, "backward": 0.75 * own, "sync": sync,
               "update": 0.0}
    sent = root_sends if rank == 0 or root_sends < 3 else 1
    warm_up = 10 * (step == 0)
    return {"event": "step", "epoch": 1 + step // 2, "iteration": step % 2,
            "loss": loss / (1 + step) + rank, "accuracy": 0.1 * step, "samples": 100 // ranks,
            "duration": own + sync + warm_up, "seconds": seconds, "bytes_sent": int(
                sent * GRADIENT)}


def write_course(folder: Path, **changes) -> Path:
    """The four runs of the course: one rank 2 s; four ranks 1.9 s, 1 s and 0.95 s an iteration.

    Their weights have the digests 5eed1231 and 5eed1234.
    """
    for name, (ranks, own, sync, sends) in SECONDS.items():
        write_run(folder / name, ranks, own=own, sync=sync, root_sends=sends,
                  **{"digest": f"5eed123{ranks}", **changes})
    return folder
