"""Everything that the three parts share; the course's documented functions are importable here.

    from common import *

They are loaded on first use, so that importing a light module stays light.
"""

from typing import Any

__all__ = ["evaluate_model", "generate_eval_report", "get_model_parameters",  # noqa: F822
           "prepare_model_for_evaluation", "prepare_model_for_training", "train_model", "witness"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from common import assignment

        return getattr(assignment, name)
    raise AttributeError(f"module 'common' has no attribute {name!r}")


def __dir__() -> "list[str]":  # quoted: Python 3.8 reads this file too, to say that it is too old
    return sorted({*globals(), *__all__})
