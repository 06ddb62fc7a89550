"""Optimisers and criteria by the names that the workload table and the flags use."""

from collections.abc import Callable

from torch import nn
from torch.optim import SGD, Adadelta, Adam, Optimizer

from common.settings import Settings

# Each is a mean over the samples of a batch: of class scores, or of log-probabilities.
CRITERIA: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": lambda: nn.CrossEntropyLoss(),
    "negative-log-likelihood": lambda: nn.NLLLoss(),
}


def create_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """The optimiser that `settings` name, over all parameters of `model`.

    `momentum` is how much of the past a running mean keeps: SGD's momentum, Adam's first beta,
    Adadelta's rho.
    """
    parameters, rate = model.parameters(), settings.learning_rate
    kept, decay = settings.momentum, settings.weight_decay
    if settings.optimizer == "adam":
        return Adam(parameters, rate, betas=(kept, 0.999), weight_decay=decay)
    if settings.optimizer == "adadelta":
        return Adadelta(parameters, rate, rho=kept, weight_decay=decay)
    return SGD(parameters, rate, kept, weight_decay=decay)
