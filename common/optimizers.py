"""Optimisers and criteria by the names that the workload table and the flags use."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import SGD, Adadelta, Adam, Optimizer

from common.failures import UsageError
from common.settings import Settings

SMOOTHED = "cross-entropy"
# Each is a mean over the samples of a batch: of class scores, or of log-probabilities.
CRITERIA: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": lambda: nn.CrossEntropyLoss(),
    "negative-log-likelihood": lambda: nn.NLLLoss(),
}


def create_criterion(settings: Settings, name: str) -> nn.Module:
    """The criterion called `name`, smoothed as `settings` say. Raises UsageError if it cannot be.

    Smoothing s gives every class s / classes of the target (Szegedy and others, arXiv:1512.00567).
    """
    if not settings.label_smoothing:
        return CRITERIA[name]()
    if name != SMOOTHED:
        raise UsageError(f"--label-smoothing is for the criterion {SMOOTHED}, and --workload "
                         f"{settings.workload} has {name}: leave it out")
    return nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)


def without_smoothing(criterion: nn.Module) -> nn.Module:
    """What evaluation measures: the criterion on the true targets, so that recipes compare."""
    smoothed = getattr(criterion, "label_smoothing", 0.0)
    return nn.CrossEntropyLoss() if smoothed else criterion


def create_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """The optimiser that `settings` name, over all parameters of `model`.

    `momentum` is how much of the past a running mean keeps: SGD's momentum, Adam's first beta,
    Adadelta's rho. "nesterov" is SGD that looks one step of its momentum ahead.
    """
    parameters, rate = decay_groups(settings, model), settings.learning_rate
    kept, decay = settings.momentum, settings.weight_decay
    if settings.optimizer == "adam":
        return Adam(parameters, rate, betas=(kept, 0.999), weight_decay=decay)
    if settings.optimizer == "adadelta":
        return Adadelta(parameters, rate, rho=kept, weight_decay=decay)
    return SGD(parameters, rate, kept, weight_decay=decay,
               nesterov=settings.optimizer == "nesterov")


def decay_groups(settings: Settings, model: nn.Module) -> list[dict[str, Any]]:
    """All parameters in groups by their decay: one, or "weights" apart from the rest, without any.

    Weights are tensors of two dimensions or more; biases and batch norm's scales have one, and
    decay would pull them to zero without making the function any smoother.
    """
    if settings.decay_on == "all":
        return [{"params": list(model.parameters())}]
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": weights}, {"params": others, "weight_decay": 0.0}]
