"""Muon: for the weights between features, a step of equal length in every direction.

    python3 PartOne/main.py --workload digits-vgg11 --optimizer muon

Gradients of such weights are dominated by few directions; Muon replaces the singular values of
their momentum by about one each and keeps the singular vectors (Jordan and others, "Muon: an
optimizer for hidden layers in neural networks", 2024). It is a function of the averaged gradient,
like any optimizer here, so what is promised of one trajectory holds for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Of the quintic whose repetition moves singular values between 0.01 and 1 to about one, and its
# number of repetitions in training images (Jordan; five in his text, three where time counts).
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
REPETITIONS = 3
SMALLEST = 1e-7


class Muon(Optimizer):
    """SGD with Nesterov momentum whose groups may ask for `orthogonal` steps.

    `groups` are as for torch.optim.SGD. In a group with `"orthogonal": True`, of parameters
    (outputs, inputs, ...) of two dimensions or more, every step first gives the parameter the norm
    sqrt(outputs), so that a row has norm 1 on average, then takes `lr` times the orthogonalised
    momentum off it; such parameters must not matter by their scale, as those before batch norm do
    not, and need no decay. `precision` is the dtype of the large matrix products.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float,
                 weight_decay: float, precision: torch.dtype) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                                  "orthogonal": False})
        self._precision = precision

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient, in place. `closure` must be None."""
        assert closure is None, "no line search here"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, kept = self.state[parameter], group["momentum"]
        if group["weight_decay"] and not group["orthogonal"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"]
        torch.add(gradient, momentum, alpha=kept, out=momentum)
        direction = gradient.add(momentum, alpha=kept)
        if group["orthogonal"]:
            parameter.mul_(len(parameter) ** 0.5 / parameter.norm().clamp(min=SMALLEST))
            # Columns in the order of memory, channels last, where a matrix is a view.
            rows = direction.movedim(1, -1)
            update = orthogonalised(rows.flatten(1), self._precision)
            direction = update.view_as(rows).movedim(-1, 1)
        parameter.sub_(direction, alpha=group["lr"])


def orthogonalised(matrix: Tensor, precision: torch.dtype) -> Tensor:
    """`matrix`, floating (m, n), with singular values between about 0.7 and 1.2; same dtype.

    Those below a hundredth of the root of their sum of squares come out smaller. An odd polynomial
    of a matrix is a polynomial of the matrix times its transpose, times the matrix: so all but two
    products are of the small square, and not of the long matrix. `precision` is their dtype.
    """
    if len(matrix) > matrix.shape[1]:
        return orthogonalised(matrix.T, precision).T
    rounded = matrix.to(precision)
    square = rounded @ rounded.T
    norm = square.diagonal().sum(dtype=matrix.dtype).sqrt().clamp(min=SMALLEST)
    square /= norm ** 2
    product = factor = _factor(square)
    for _ in range(REPETITIONS - 1):
        square = factor @ (square @ factor)
        factor = _factor(square)
        product = factor @ product
    return (product / norm @ rounded).to(matrix.dtype)


def _factor(square: Tensor) -> Tensor:
    """The quintic of a matrix, divided by that matrix: a polynomial of its `square`, (m, m)."""
    factor = torch.addmm(square, square, square, beta=CUBIC, alpha=QUINTIC)
    factor.diagonal().add_(LINEAR)
    return factor
