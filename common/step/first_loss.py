"""The first loss of somebody's own model and criterion, examined before anything is learned.

    examine_first_loss(criterion, model, "task.py:TASK")
    criterion(model(inputs), targets).backward()
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from common.core.failures import UsageError
from common.core.random_numbers import own_draws

SUM = 0.01  # a sum's relative error, in bf16 or fp16


def examine_first_loss(criterion: nn.Module, model: nn.Module, name: str) -> None:
    """Makes the first loss that is trained on raise UsageError where it cannot train `model`.

    `name` is the workload's. Call it when the model is complete: it must have each parameter that
    the loss depends on, by memory, since shards in lockstep have copies of the same memory.
    """
    known = {parameter.data_ptr() for parameter in model.parameters()}

    def examine(criterion: nn.Module, given: Any, loss: Any) -> None:
        if not (isinstance(loss, Tensor) and loss.ndim == 0):
            shape = f", of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise UsageError(f"{name}: the criterion {criterion} gives a {type(loss).__name__}"
                             f"{shape}: it must give one number, the mean over the samples of a "
                             "batch, as a tensor ()")
        if not torch.is_grad_enabled():
            return
        if not loss.requires_grad:
            raise UsageError(f"{name}: the loss depends on no parameter: neither forward nor the "
                             "criterion may use detach(), argmax(), item(), numpy() or no_grad()")
        for leaf in _leaves(loss):
            if isinstance(leaf, nn.Parameter) and leaf.data_ptr() not in known:
                raise UsageError(f"{name}: the loss depends on a parameter of shape "
                                 f"{tuple(leaf.shape)} that the model does not have, so nothing "
                                 "would train it: make each layer in the model's __init__, lists "
                                 "of layers as nn.ModuleList, and freeze others by "
                                 "requires_grad_(False)")
        if _is_sum(criterion, given, loss):
            raise UsageError(f"{name}: the criterion {criterion} gives twice the loss for a batch "
                             "repeated, so it is a sum: it must be the mean over the samples of a "
                             "batch, else other numbers of ranks learn something else")
        hook.remove()
    hook = criterion.register_forward_hook(examine)


def _is_sum(criterion: nn.Module, given: Any, loss: Tensor) -> bool:
    """True if the loss of a batch's samples, each given twice, is twice its loss.

    False where it cannot be told. A copy of the criterion computes it, and random states are put
    back, so that the run does not notice.
    """
    devices = [loss.device] if loss.is_cuda else []
    try:
        with torch.no_grad(), own_draws(), torch.random.fork_rng(devices):
            twice = deepcopy(criterion).forward(*(torch.cat([each, each]) for each in given))
        once = loss.item()
        return 0 < abs(once) < math.inf and math.isclose(twice.item(), 2 * once, rel_tol=SUM)
    except Exception:  # the criterion's own, on a batch of a size that it never gets
        return False


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """The tensors whose gradients backward from `loss` adds up."""
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [before for before, _ in node.next_functions]
