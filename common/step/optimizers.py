"""Optimizers and criteria by the names that the workload table and the flags use."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, Optimizer

from common.arithmetic.torch_private import AnyBatchNorm, without_compiler
from common.core.failures import UsageError
from common.core.precision import Precision
from common.settings.settings import Settings
from common.step.muon import Muon

# Each is a mean over the samples of a batch: of class scores, or of log-probabilities.
CRITERIA: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": lambda: nn.CrossEntropyLoss(),
    "negative-log-likelihood": lambda: nn.NLLLoss(),
}


class Function(nn.Module):
    """A criterion that is a plain function of outputs and targets, as F.cross_entropy."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._function(outputs, targets)

    def extra_repr(self) -> str:
        """The function's own name."""
        return getattr(self._function, "__name__", "")


def create_criterion(settings: Settings, name: str | nn.Module | Callable) -> nn.Module:
    """The criterion called `name`, smoothed as `settings` say, which requires cross-entropy.

    One that is a module already stays as it is, and a function becomes one. Raises UsageError for
    one that is not a mean, and for another name.

    Smoothing s gives every class s / classes of the target (Szegedy and others, arXiv:1512.00567).
    """
    if isinstance(name, nn.Module):
        if (reduction := getattr(name, "reduction", "mean")) != "mean":
            raise UsageError(f"the criterion {name} has reduction={reduction!r}: it must be the "
                             "mean over the samples of a batch, reduction='mean'")
        return name
    if callable(name):
        return Function(name)
    if name not in CRITERIA:
        raise UsageError(f"no criterion is called {name!r}; there are {' and '.join(CRITERIA)}, "
                         "and any module or function, as torch.nn.MSELoss()")
    if not settings.label_smoothing:
        return CRITERIA[name]()
    return nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)


def without_smoothing(criterion: nn.Module) -> nn.Module:
    """The criterion for evaluation, without label smoothing, so that recipes are comparable."""
    smoothed = getattr(criterion, "label_smoothing", 0.0)
    return nn.CrossEntropyLoss() if smoothed else criterion


def create_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """The optimizer that `settings` name, over all parameters of `model`.

    `momentum` is how much of the past a running mean keeps: SGD's momentum, Adam's first beta,
    Adadelta's rho. "nesterov" is SGD that looks one step of its momentum ahead; "muon" is that,
    with orthogonalised steps for the convolutions between batch norms.
    """
    parameters, rate = parameter_groups(settings, model), settings.learning_rate
    kept, decay = settings.momentum, settings.weight_decay
    if settings.optimizer == "adam":
        return without_compiler(Adam)(parameters, rate, betas=(kept, 0.999), weight_decay=decay)
    if settings.optimizer == "adadelta":
        return without_compiler(Adadelta)(parameters, rate, rho=kept, weight_decay=decay)
    if settings.optimizer == "muon":
        return without_compiler(Muon)(parameters, rate, kept, decay,
                                      Precision(settings.precision).products)
    return without_compiler(SGD)(parameters, rate, kept, weight_decay=decay,
                                 nesterov=settings.optimizer == "nesterov")


def parameter_groups(settings: Settings, model: nn.Module) -> list[dict[str, Any]]:
    """All parameters, in one group if they are alike; else by what they want. No group is empty.

    Weights are tensors of two dimensions or more; biases and batch norm's scales have one, and
    decay would pull them to zero without making the function any smoother.
    """
    muon = settings.optimizer == "muon"
    if settings.decay_on == "all" and not muon:
        return [{"params": list(model.parameters())}]
    hidden = hidden_convolutions(model) if muon else set()
    decay = settings.weight_decay if settings.decay_on == "all" else 0.0
    groups: dict[str, dict[str, Any]] = {
        "weights": {}, "others": {"weight_decay": decay}, "hidden": {"orthogonal": True}}
    for parameter in model.parameters():
        kind = ("hidden" if id(parameter) in hidden
                else "weights" if parameter.ndim > 1 else "others")
        groups[kind].setdefault("params", []).append(parameter)
    return [group for group in groups.values() if "params" in group]


def hidden_convolutions(model: nn.Module) -> set[int]:
    """The ids of the weights of all convolutions before a batch norm, but for the first.

    Batch norm takes their scale out again, and the first convolution sees pixels, not features.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | AnyBatchNorm)]
    return {id(layer.weight) for layer, after in pairwise(layers) if layer is not layers[0]
            and isinstance(layer, nn.Conv2d) and isinstance(after, AnyBatchNorm)}
