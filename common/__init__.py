"""Everything that the three parts share; the course's documented functions are importable here.

They are loaded on first use, so that importing a light module stays light.
"""

from typing import Any

_DOCUMENTED = ("evaluate_model", "generate_eval_report", "get_model_parameters",
               "prepare_model_for_evaluation", "prepare_model_for_training", "train_model")


def __getattr__(name: str) -> Any:
    if name in _DOCUMENTED:
        from common import assignment

        return getattr(assignment, name)
    raise AttributeError(f"module 'common' has no attribute {name!r}")
