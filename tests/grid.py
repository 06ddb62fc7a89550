"""A grid of cells that never was: planted constants, for what calibrates itself on such."""

from studies.prediction.calibration import Calibration
from studies.prediction.forms import payload_rate
from studies.prediction.grid import COMPUTE_ONLY
from studies.prediction.model import STRATEGIES, Compute, Cost, Gradient, Machine

MACHINE = Machine(cores=2, machines=1)
SIZES = (1e6, 20e6, 9e6, 4e6, 2e6)  # bytes, in the order of backward
READY = (0.1, 0.2, 0.4, 0.7, 1.0)
PLANTED = Calibration(
    MACHINE, 256, Gradient(SIZES, READY), fixed=0.02, image=0.004, update=0.02, backward=0.75,
    latency=1e-4, costs={name: Cost(0.03 + 0.01 * number, 0.02)
                         for number, name in enumerate(STRATEGIES)}, errors={}, measured=(2, 4))
CELLS = [(ranks, rate) for ranks in (2, 3, 4) for rate in ("100mbit", "1gbit", "none")]


def cell(ranks: int, rate: str, model: Calibration = PLANTED) -> dict:
    """The record that benchmarks/sync.py would write of a cluster that obeys the model."""
    compute, link = model.compute(ranks), model.link(payload_rate(rate))
    phases = {**Compute._asdict(compute), "sync": 0.0}
    return {"nodes": ranks, "rate": rate, "gradient_bytes": list(SIZES[::-1]),
            "ready": [compute.backward * at for at in READY[::-1]],
            "variants": {name: {"steps": [model.seconds(name, ranks, link)] * 3, "phases": phases}
                         for name in (COMPUTE_ONLY, *model.costs)}}


def grid(model: Calibration = PLANTED) -> dict:
    """The whole file."""
    return {"made_on": {"processor": "abacus", "cores": 2, "machines": 1, "threads": 1,
                        "precision": "float32", "batch": 256},
            "cells": [cell(ranks, rate, model) for ranks, rate in CELLS]}
