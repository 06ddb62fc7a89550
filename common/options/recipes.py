"""Recipes: named defaults to train with. A new recipe is a row.

A recipe overrides the workload's defaults, and any flag overrides the recipe. The values that a run
uses are in the banner, settings.json and checkpoints.

    python3 PartOne/main.py --recipe record --precision bf16
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from common.core.failures import UsageError
from common.core.setting_types import ScheduleChoice

_ROWS: dict[str, dict[str, Any]] = {
    # The assignment's numbers, or those of the workload.
    "course": {},
    # For VGG-11 on CIFAR-10, in few epochs; what has been tried is in docs/one_node.md.
    "record": {
        "epochs": 9, "batch_size": 512, "learning_rate": 0.12, "optimizer": "muon",
        "schedule": ScheduleChoice("linear"), "momentum": 0.8, "weight_decay": 5e-4,
        "decay_on": "weights",
        "label_smoothing": 0.1, "flips": "alternating", "crop_padding": 2, "init": "whitened",
    },
}
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(_ROWS)


def find_recipe(name: str) -> Mapping[str, Any]:
    """The defaults of the recipe called `name`, by setting; UsageError for an unknown name."""
    if name not in RECIPES:
        raise UsageError(f"no recipe is called {name!r}; there are: {', '.join(RECIPES)}")
    return RECIPES[name]
