"""Batch normalisation over the global batch: statistics of all ranks together, on any backend.

With statistics of its own shard alone, N nodes learn something else than one; with these, the same
up to rounding. A layer of C channels costs one all-gather of 8 * (2C + 1) bytes per rank in
forward, one of 8C bytes (16C for float64) in backward, and mostly the wait for them. On virtual
nodes the shards' numbers are gathered, and are added in an order that is the same on any number of
ranks: see common/step/lockstep.py. torch's own SyncBatchNorm refuses CPU tensors.

    python3 -m pytest tests/multiprocess/test_batch_norm.py
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from common.arithmetic import torch_private
from common.arithmetic.pooling import PooledBatchNorm2d, max_pool, track
from common.arithmetic.torch_private import AnyBatchNorm

Gather = Callable[[Tensor], Tensor]
"""From a tensor to those of all that take part, stacked in a fixed order."""

_over_shards: Gather | None = None


@contextmanager
def over_shards(gather: Gather) -> Iterator[None]:
    """Lets the layers below, forward and backward, exchange numbers by `gather`.

    It takes those of one shard, and returns those of all shards; else they are the ranks'.
    """
    global _over_shards
    before, _over_shards = _over_shards, gather
    try:
        yield
    finally:
        _over_shards = before


def _exchange() -> Gather | None:
    """Returns the exchange of numbers; None where there is nobody to exchange them with."""
    if _over_shards or not dist.is_initialized() or dist.get_world_size() == 1:
        return _over_shards
    return _gather_ranks


def _gather_ranks(mine: Tensor) -> Tensor:
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows)


class _GlobalStatistics(AnyBatchNorm):
    """The forward of the layers below; input (n, C, ...), any floating dtype and memory format.

    In training every rank must call forward, and then backward, of the same layers in the same
    order, with any number of samples, also none; within `over_shards`, every shard of the batch.
    The input's gradient is that of the *sum* of all ranks' losses. The gradients of weight and bias
    are this rank's part: the strategy in the seam averages them with all other gradients.
    Mutates the running buffers as nn.BatchNorm on the joined batch. In eval mode, or alone, it is
    nn.BatchNorm. Raises ValueError on every rank if all hold fewer than two values per channel.
    """

    def forward(self, input: Tensor) -> Tensor:
        gather = _exchange()
        if not (self.training and gather):
            return super().forward(input)
        torch_private.require_dimensions(self, input)
        with torch.no_grad():
            count, mean, squares = global_statistics(input, gather)
            if count < 2:
                raise ValueError("Expected more than 1 value per channel when training, got "
                                 f"{count} over all ranks, input size {list(input.shape)} here")
            track(self, count, mean, squares)
            statistics = torch.stack([mean, squares / count])
        return self._finish(_Normalize.apply(input, self.weight, self.bias, statistics, count,
                                             self.eps))

    def _finish(self, normalized: Tensor) -> Tensor:
        """Returns the output for the normalised maps; layers that do more override it."""
        return normalized


class SynchronizedBatchNorm1d(_GlobalStatistics, nn.BatchNorm1d):
    """nn.BatchNorm1d over the global batch: input (n, C) or (n, C, length)."""


class SynchronizedBatchNorm2d(_GlobalStatistics, nn.BatchNorm2d):
    """nn.BatchNorm2d over the global batch: input (n, C, height, width)."""


class SynchronizedPooledBatchNorm2d(_GlobalStatistics, PooledBatchNorm2d):
    """PooledBatchNorm2d over the global batch: input (n, C, height, width)."""

    def _finish(self, normalized: Tensor) -> Tensor:
        return max_pool(normalized, self.size)


class SynchronizedBatchNorm3d(_GlobalStatistics, nn.BatchNorm3d):
    """nn.BatchNorm3d over the global batch: input (n, C, depth, height, width)."""


_SYNCHRONIZED: dict[type, type] = {nn.BatchNorm1d: SynchronizedBatchNorm1d,
                                   nn.BatchNorm2d: SynchronizedBatchNorm2d,
                                   PooledBatchNorm2d: SynchronizedPooledBatchNorm2d,
                                   nn.BatchNorm3d: SynchronizedBatchNorm3d}


def synchronize_batch_norm(model: nn.Module) -> nn.Module:
    """Turns every batch norm of `model` into its kind above, in place; returns `model`.

    Only the class of a layer changes: parameters, buffers, hooks and settings stay the very same
    objects. Subclasses of nn.BatchNorm are left alone: their forward may be their own.
    """
    for layer in model.modules():
        torch_private.change_class(layer, _SYNCHRONIZED.get(type(layer), type(layer)))
    return model


def unsynchronize_batch_norm(model: nn.Module) -> nn.Module:
    """Takes synchronize_batch_norm back, in place; returns `model`."""
    plain = {kind: original for original, kind in _SYNCHRONIZED.items()}
    for layer in model.modules():
        torch_private.change_class(layer, plain.get(type(layer), type(layer)))
    return model


def freeze_batch_norm(model: nn.Module) -> nn.Module:
    """Lets every batch-norm layer normalise by its running statistics for good; returns `model`.

    A hook calls eval() before each forward, whatever model.train() said. Weight and bias learn on.
    """
    for layer in model.modules():
        if isinstance(layer, AnyBatchNorm):
            layer.register_forward_pre_hook(_to_eval)
    return model


def _to_eval(layer: nn.Module, inputs: Any) -> None:
    layer.eval()


def global_statistics(input: Tensor, gather: Gather) -> tuple[int, Tensor, Tensor]:
    """Values per channel, their mean, and sum of squared deviations over all; float64, (C,).

    All that take part must call it. Each combines the same table in the same order, so all get the
    same bits. Float64 keeps counts above 2**24 exact, at twice the bytes.
    """
    count, mean, squares = local_statistics(input)
    packets = gather(torch.cat([mean.new_tensor([count]), mean, squares]))
    counts, means, all_squares = packets.split([1, len(mean), len(mean)], dim=1)
    return int(counts.sum()), *combine(counts, means, all_squares)


def local_statistics(input: Tensor) -> tuple[int, Tensor, Tensor]:
    """The same three of this rank's (n, C, ...) input alone; zeros if it is empty.

    For channels_last torch sums all n*H*W values of a channel in one float32: 65536 values of 1e4
    gave a mean wrong by 3. The same memory read as n rows of H*W*C columns sums n values at a time.
    """
    channels = input.shape[1]
    if input.numel() == 0:
        return 0, *input.new_zeros(2, channels, dtype=torch.float64)
    channels_last = input.movedim(1, -1)
    table = channels_last.reshape(len(input), -1) if channels_last.is_contiguous() else input
    # for bfloat16 input the buffers, otherwise unused, make the kernel count in float32
    buffer = input.new_zeros(table.shape[1], dtype=torch.promote_types(input.dtype, torch.float32))
    mean, variance = torch_private.batch_statistics(table, buffer, buffer.clone(), 0.0)
    means, variances = (s.double().view(-1, channels) for s in (mean, variance))
    counts = means.new_full((len(means), 1), input.numel() // means.numel())
    return input.numel() // channels, *combine(counts, means, counts * variances)


def combine(counts: Tensor, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations, (C,), of k parts: `counts` (k, 1), the others (k, C).

    Sums of x*x would cancel, deviations do not (Chan, Golub and LeVeque, 1983, for k parts).
    """
    mean = (counts * means).sum(0) / counts.sum().clamp(min=1)
    return mean, (squares + counts * (means - mean).square()).sum(0)


class _Normalize(torch.autograd.Function):
    """Batch norm by `statistics` (2, C), mean and variance, which depend on all ranks' inputs."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None,
                statistics: Tensor, count: int, eps: float) -> Tensor:
        statistics = statistics.to(torch.promote_types(input.dtype, torch.float32))
        weight, bias = (p if p is None else p.to(statistics.dtype) for p in (weight, bias))
        ctx.save_for_backward(input, weight, statistics)
        ctx.count, ctx.eps = count, eps
        return batch_norm(input, statistics[0], statistics[1], weight, bias, eps=eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, statistics = ctx.saved_tensors
        if gradient.stride() != input.stride():  # mixed memory formats take the kernels' slow path
            gradient = torch.empty_like(input).copy_(gradient)
        local = _gradient_sums(gradient, input, statistics, ctx.eps)
        gather = _exchange()
        assert gather is not None
        total = gather(local).sum(0)  # the parameters' gradients stay this rank's part
        of_input = _input_gradient(gradient, input, weight, statistics, total / ctx.count, ctx.eps)
        of_weight, of_bias = (local[1 - i] if ctx.needs_input_grad[1 + i] else None for i in (0, 1))
        return of_input, of_weight, of_bias, None, None, None


def _gradient_sums(gradient: Tensor, input: Tensor, statistics: Tensor, eps: float) -> Tensor:
    """This rank's sums per channel of gradient and of gradient * normalised input; (2, C)."""
    if input.numel() == 0:  # here the kernel would divide by zero and end the process
        return torch.zeros_like(statistics)
    mean, variance = statistics
    of_weight, of_bias = torch_private.batch_norm_sums(gradient, input, mean, variance, eps)
    return torch.stack([of_bias, of_weight])


def _input_gradient(gradient: Tensor, input: Tensor, weight: Tensor | None, statistics: Tensor,
                    averages: Tensor, eps: float) -> Tensor:
    """weight / deviation * (gradient - averages[0] - normalised input * averages[1]).

    `averages` (2, C): the sums of _gradient_sums over all ranks, divided by the global count.
    """
    mean, variance = statistics
    scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
    shift, slope = -scale * averages
    if input.dtype == mean.dtype:  # eval-mode batch norm: the fastest multiply-add per channel
        rest = batch_norm(input, mean, variance, slope, shift, eps=eps)
        return rest.addcmul_(gradient, scale.view(-1, *[1] * (input.dim() - 2)))
    # addcmul_ of bfloat16 by a float32 scale would copy everything to float32, 20 times slower
    rest = batch_norm(input, mean, variance, slope, eps=eps)
    return rest.add_(batch_norm(gradient, averages[0], variance, weight, eps=eps))


def has_batch_norm(model: nn.Module) -> bool:
    """Returns True if the model normalises by the statistics of a batch."""
    return any(isinstance(layer, AnyBatchNorm) for layer in model.modules())


def is_synchronized(model: nn.Module) -> bool:
    """Returns True if the model normalises by the statistics of the global batch."""
    return any(isinstance(layer, _GlobalStatistics) for layer in model.modules())
