"""All uses of torch's private interfaces, which torch may change without notice.

    python3 -m pytest tests/unit/test_torch_private.py     # each beside its public equivalent

Each is here for speed, and names the public way that gives the same numbers: the replacement on the
day torch changes it. None copies anything more than torch does.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.profiler import _ExperimentalConfig
from torch.utils._python_dispatch import TorchDispatchMode

# The base class of nn.BatchNorm1d, 2d and 3d; publicly the tuple of these three.
AnyBatchNorm = _BatchNorm
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

# Where DDP finds the function that hands out the leader's buffers in forward, and waits in it.
# Publicly: nothing.
BROADCAST_IN_FORWARD = (dist, "_broadcast_coalesced")


class DispatchMode(TorchDispatchMode):
    """Sees every operation, with its arguments, before it is carried out. Publicly: nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To skip it, torch imports it: see without_compiler."""
        return False


def without_compiler(kind: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """An optimizer's class whose instances do their work without importing torch._dynamo.

    That is 900 modules, and 1.5 seconds of computing at the start of every program; torch wants it
    to keep torch.compile out of these methods. Publicly: `kind` itself.
    """
    for method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict,
                   Optimizer.load_state_dict):
        if function := getattr(method, "__wrapped__", None):
            function.__dynamo_disable = function
    return type(kind.__name__, (kind,), {"step": torch.no_grad()(inspect.unwrap(kind.step))})


def multiplies_bf16() -> bool:
    """Returns True if this CPU has instructions by which torch multiplies bf16.

    Publicly: a product of two large bf16 matrices, which takes minutes where it has none.
    """
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def kernel_of(name: str) -> Callable[..., Any]:
    """The kernel that torch's CPU operation `name` has now, to call when another has its place.

    Publicly: nothing that still calls it then.
    """
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *arguments, **named: kernel.call_boxed(keys, *arguments, **named)


def take_back(kernels: torch.library.Library) -> None:
    """Lets torch's own kernels have their places again. Publicly: torch.library._scoped_library."""
    kernels._destroy()


def change_class(layer: nn.Module, kind: type[nn.Module]) -> None:
    """Makes `layer` an instance of `kind`, in place: its parameters, buffers and hooks stay.

    Publicly: build a `kind` and assign the layer's parameters and buffers to it, and the new layer
    to its parent.
    """
    layer.__class__ = kind


def trace_all_threads() -> Any:
    """A profiler's configuration that traces every thread, and not only the one that starts it.

    Publicly: None, and then messages that leave from threads of their own are not in the trace.
    """
    return _ExperimentalConfig(profile_all_threads=True)


class BeforeUse:
    """A forward pre-hook that wants to know that a layer is used, and not on what.

    Layers that are fused with others call it, where any other hook makes them layers of their own.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self, layer: nn.Module, inputs: object) -> None:
        self._action()


def hooks_of(layer: nn.Module) -> list[Callable[..., object]]:
    """The hooks on `layer` itself. Publicly: nothing."""
    return [hook for hooks in (layer._forward_pre_hooks, layer._forward_hooks,
                               layer._backward_pre_hooks, layer._backward_hooks)
            for hook in hooks.values()]


def require_dimensions(layer: AnyBatchNorm, input: Tensor) -> None:
    """Raises ValueError for an input that a batch-norm layer cannot take. Publicly: input.dim()."""
    layer._check_input_dim(input)


def batch_statistics(input: Tensor, running_mean: Tensor | None, running_variance: Tensor | None,
                     momentum: float) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of (n, C, ...); moves the running ones, in place.

    For bfloat16 input the running statistics' dtype is the one that sums are made in. Publicly:
    torch.var_mean(input, dims, correction=0), in two passes and without the running statistics.
    """
    return torch.batch_norm_update_stats(input, running_mean, running_variance, momentum)


def batch_norm_sums(gradient: Tensor, input: Tensor, mean: Tensor, variance: Tensor,
                    eps: float) -> tuple[Tensor, Tensor]:
    """Sums by channel of gradient * normalised input, and of gradient; input (n, C, ...), n > 0.

    Publicly: the gradients of weight and bias by autograd through nn.functional.batch_norm.
    """
    return torch.ops.aten.native_batch_norm_backward(
        gradient, input, None, mean, variance, None, None, False, eps, [False, True, True])[1:]
