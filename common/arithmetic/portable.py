"""Portable arithmetic: the same float32 bits on any x86-64 with AVX2 and FMA, with any threads.

Most of torch's CPU operations have such bits. `use` puts kernels of ours, registered with torch's
dispatcher, in the place of those that have not: matrix products, convolutions, softmax, GELU, the
sums of batch, layer and group norm, and sums over a whole tensor. Whatever runs in this process
then uses them, forward and backward, in a model of ours or of a user. bfloat16 maps are multiplied
as the float32 numbers that they are, and results are rounded once. Other dtypes stay torch's.

    python3 -m pytest tests/unit/test_portable.py
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from common.arithmetic import products
from common.arithmetic.kernels import LANES, NAMES, run, why_not
from common.arithmetic.norm_relu import BLOCK
from common.arithmetic.products import NATIVE, PORTABLE, add_outer, times
from common.arithmetic.torch_private import DispatchMode, kernel_of, take_back
from common.arithmetic.unfolded import Windows

# torch splits a sum over a whole tensor among its threads from so many summands on.
GRAIN = 32768
# Operations of torch's whose bits are the same with AVX2, with AVX-512 and with any number of
# threads, as tests/unit/test_portable.py measures; and what only moves numbers.
AGREEING = frozenset("""
    abs add addcdiv addcmul div leaky_relu leaky_relu_backward lerp maximum minimum mul neg
    reciprocal relu rsqrt rsub square sub threshold_backward clamp hardtanh
    hardtanh_backward hardswish where sign floor round eq ne lt le gt ge logical_and logical_or
    logical_not bitwise_not isnan mse_loss mse_loss_backward l1_loss smooth_l1_loss
    smooth_l1_loss_backward huber_loss huber_loss_backward nll_loss_forward nll_loss_backward
    nll_loss2d_forward nll_loss2d_backward tanh_backward sigmoid_backward log_sigmoid_backward
    native_layer_norm avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward
    max_unpool2d embedding embedding_dense_backward index_add scatter_add amax amin max min
    argmax logsumexp var var_mean std cumsum native_dropout bernoulli normal uniform rand randn
    rand_like randn_like randint randperm arange zeros ones full empty zeros_like ones_like
    empty_like full_like new_zeros new_ones new_empty new_full empty_strided new_empty_strided
    fill zero copy _to_copy clone cat stack constant_pad_nd gather scatter index index_put
    index_select masked_fill masked_fill_ slice_backward select_backward repeat roll flip tril
    triu sort topk one_hot scalar_tensor lift_fresh promote_types _safe_softmax unsafe_split
    _local_scalar_dense item _unsafe_view resize nonzero isfinite select_scatter slice_scatter
    pixel_shuffle col2im im2col unfold_backward _unsafe_index
""".split())
Kernel = Callable[..., Any]

_kernels: dict[str, Kernel] = {}
_registered: list[torch.library.Library] = []


def use(arithmetic: str) -> None:
    """Makes this process compute by "portable" or "native" arithmetic, from now on.

    Raises RuntimeError if "portable" is asked for where nothing could be compiled.
    """
    while _registered:
        take_back(_registered.pop())
    if arithmetic == PORTABLE:
        if reason := why_not():
            raise RuntimeError(f"portable arithmetic needs compiled loops: {reason}")
        for name in _kernels:
            _torch(name)  # before ours takes its place
        library = torch.library.Library("aten", "IMPL")
        _registered.append(library)
        for name, kernel in _kernels.items():
            library.impl(name, kernel, "CPU")
    # Fused attention is one kernel of torch's; without it, products and softmax.
    torch.backends.cuda.enable_flash_sdp(arithmetic == NATIVE)
    products.choose(arithmetic)


def what_is_left(model: nn.Module, inputs: Tensor) -> str:
    """Names the operations of `model` that stay torch's, separated by commas; "" for none.

    Their bits may depend on the processor or on threads. Runs `model` forward, in training, on
    `inputs`, a batch; its buffers and the random state are put back. What `model` cannot do with
    them it will not do in its first step either, and says so there.
    """
    buffers = [each.clone() for each in model.buffers()]
    seen = _Seen()
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception), seen:
        model.train()(inputs)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    return ", ".join(sorted(seen.left))


def note(left: str) -> None:
    """Makes `arithmetic()` name what `what_is_left` has found."""
    products.choose(f"{PORTABLE}, but for: {left}" if left else PORTABLE)


class _Seen(DispatchMode):
    """Collects the names of operations on floating-point tensors that are not known to agree."""

    def __init__(self) -> None:
        super().__init__()
        self.left: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: object, arguments: Any = (),
                           named: Any = None) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0]
        if not (function.is_view or "::" in name or _agrees(name, arguments)):
            self.left.add(name)
        return function(*arguments, **(named or {}))


def _agrees(name: str, arguments: Any) -> bool:
    if name == "pow":
        return isinstance(arguments[1], int | float) and arguments[1] in (-1, 1, 2, 3)
    if name == "convolution":
        return arguments[0].dim() in (3, 4) and not arguments[6]
    return name in _kernels or name.removesuffix("_") in AGREEING


@cache
def _torch(name: str) -> Kernel:
    """torch's own kernel of the operation `name`."""
    return kernel_of(name)


def _instead_of(name: str) -> Callable[[Kernel], Kernel]:
    """Registers a function as the kernel of torch's operation `name`, for tensors that are ours.

    The first argument decides. What the function leaves to torch it calls by `_torch(name)`.
    """
    def register(kernel: Kernel) -> Kernel:
        def choose(first: Tensor, *arguments: Any, **named: Any) -> Any:
            ours = first.dtype in NAMES and first.device.type == "cpu"
            return (kernel if ours else _torch(name))(first, *arguments, **named)
        _kernels[name] = choose
        return kernel
    return register


def _into(name: str, functional: str) -> None:
    """Registers a form that writes into `out`: the functional one, copied."""
    def kernel(*arguments: Any, out: Tensor, **named: Any) -> Tensor:
        value = _kernels[functional](*arguments, **named)
        return out.resize_(value.shape).copy_(value)
    _kernels[name] = kernel


def _in_place(name: str) -> None:
    """Registers the form that writes into its first argument."""
    def kernel(first: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return first.copy_(_kernels[name](first, *arguments, **named))
    _kernels[f"{name}_"] = kernel


# Products

@_instead_of("mm")
def _mm(left: Tensor, right: Tensor) -> Tensor:
    if left.dim() != 2 or not _fit(left, right):
        return _torch("mm")(left, right)  # which says what is wrong
    return _product(left[None], right[None])[0]


def _fit(left: Tensor, right: Tensor) -> bool:
    """Returns True if two tensors of as many dimensions have a product: columns, rows, dtype."""
    return (left.dim() == right.dim() and left.shape[-1] == right.shape[-2]
            and left.dtype == right.dtype)


@_instead_of("bmm")
def _product(left: Tensor, right: Tensor) -> Tensor:
    """(P, M, K) times (P, K, N), with a dtype in common."""
    if left.dim() != 3 or not _fit(left, right) or len(left) != len(right):
        return _torch("bmm")(left, right)  # which says what is wrong
    dtype, left, right = left.dtype, left.float(), right.float()
    if left.mT.is_contiguous() and not left.is_contiguous() and right.is_contiguous():
        value = add_outer(None, left.mT, right, ours=True)
    else:
        is_readable = right.is_contiguous() or right.mT.is_contiguous()
        value = times(left.contiguous(), right if is_readable else right.contiguous(), ours=True)
    return value.to(dtype)


@_instead_of("addmm")
def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1,
           alpha: float = 1) -> Tensor:
    return _plus(bias, _mm(left, right), beta, alpha)


@_instead_of("baddbmm")
def _baddbmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1,
             alpha: float = 1) -> Tensor:
    return _plus(bias, _product(left, right), beta, alpha)


@_instead_of("addmv")
def _addmv(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1,
           alpha: float = 1) -> Tensor:
    return _plus(bias, _mv(left, right), beta, alpha)


def _plus(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    if alpha != 1:
        product.mul_(alpha)
    return product if beta == 0 else product.add_(bias if beta == 1 else bias * beta)


@_instead_of("mv")
def _mv(left: Tensor, right: Tensor) -> Tensor:
    return _mm(left, right[:, None])[:, 0]


@_instead_of("dot")
def _dot(left: Tensor, right: Tensor) -> Tensor:
    return _mm(left[None], right[:, None])[0, 0]


for _name in ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv"):
    _into(f"{_name}.out", _name)


for _name in ("addmm", "baddbmm", "addmv"):
    _in_place(_name)


# Convolutions of one or two dimensions: unfolded maps, and one product

@_instead_of("convolution")
def _convolution(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
                 padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                 output_padding: Sequence[int], groups: int) -> Tensor:
    is_ours = (not transposed and maps.dim() in (3, 4) and maps.dtype == weight.dtype
               and maps.shape[1] == weight.shape[1] * groups)
    windows = Windows(maps, weight, stride, padding, dilation) if is_ours else None
    if windows is None or min(windows.sides) < 1:  # torch says what is wrong
        return _torch("convolution")(maps, weight, bias, stride, padding, dilation, transposed,
                                     output_padding, groups)
    return windows.forward(maps, weight, bias, groups)


@_instead_of("convolution_backward")
def _convolution_backward(gradient: Tensor, maps: Tensor, weight: Tensor, bias_sizes: object,
                          stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
                          transposed: bool, output_padding: Sequence[int], groups: int,
                          wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    if transposed or maps.dim() not in (3, 4):
        return _torch("convolution_backward")(gradient, maps, weight, bias_sizes, stride, padding,
                                              dilation, transposed, output_padding, groups, wanted)
    windows = Windows(maps, weight, stride, padding, dilation)
    of_maps, of_weight = windows.gradients(gradient, maps, weight, groups, *wanted[:2])
    of_bias = gradient.sum([0, *range(2, gradient.dim())]) if wanted[2] else None
    return of_maps, of_weight, of_bias


# Softmax and GELU

def _by_rows(name: str, dim: int, *tensors: Tensor) -> Tensor:
    """Runs the compiled `name` along `dim` of tensors of one shape; returns one of their dtype."""
    dtype = tensors[0].dtype
    if not tensors[0].numel():
        return torch.empty_like(tensors[0])
    rows = [each.float().movedim(dim, -1).contiguous() if each.dim() else each.float()
            for each in tensors]
    made = torch.empty_like(rows[0])
    columns = made.shape[-1] if made.dim() else 1
    assert run(name, (*rows, made), (made.numel() // columns, columns))
    return (made.movedim(-1, dim).contiguous() if made.dim() else made).to(dtype)


for _name in ("softmax", "log_softmax"):
    def _softmax(values: Tensor, dim: int, half_to_float: bool, name: str = _name) -> Tensor:
        return _by_rows(name, dim, values)

    def _of_softmax(gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype,
                    name: str = _name) -> Tensor:
        return _by_rows(f"of_{name}", dim, gradient, output)

    _instead_of(f"_{_name}")(_softmax)
    _instead_of(f"_{_name}_backward_data")(_of_softmax)


@_instead_of("gelu")
def _gelu(values: Tensor, *, approximate: str = "none") -> Tensor:
    return _gelu_of(values, None, approximate)


@_instead_of("gelu_backward")
def _gelu_backward(gradient: Tensor, values: Tensor, *, approximate: str = "none") -> Tensor:
    return _gelu_of(values, gradient.float().contiguous(), approximate)


def _gelu_of(values: Tensor, gradient: Tensor | None, approximate: str) -> Tensor:
    given = values.float().contiguous()
    made = torch.empty_like(given)
    assert run("gelu", (given, gradient, made), (given.numel(), approximate == "tanh"))
    return made.to(values.dtype)


# Functions of each number, which torch computes otherwise at a vector's end, or leaves to MKL

for _name in ("exp", "log", "sqrt", "tanh", "sigmoid"):
    def _each(values: Tensor, name: str = _name) -> Tensor:
        given = values.float().contiguous()
        made = torch.empty_like(given)
        assert run(f"each_{name}", (given, made), (given.numel(),))
        return made.to(values.dtype)

    _instead_of(_name)(_each)
    _in_place(_name)
    _into(f"{_name}.out", _name)


@_instead_of("silu")
def _silu(values: Tensor) -> Tensor:
    return values * values.sigmoid()


_in_place("silu")


@_instead_of("silu_backward")
def _silu_backward(gradient: Tensor, values: Tensor) -> Tensor:
    sigmoid = values.sigmoid()
    return gradient * sigmoid * (1 + values * (1 - sigmoid))


@_instead_of("log_sigmoid_forward")
def _log_sigmoid(values: Tensor) -> tuple[Tensor, Tensor]:
    """With what torch's backward wants of it: exp of minus the size."""
    return _each(values, "log_sigmoid"), _each(-values.abs(), "exp")


@_instead_of("softplus")
def _softplus(values: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = values * beta
    return torch.where(scaled > threshold, values, _each(-scaled, "log_sigmoid") / -beta)


@_instead_of("softplus_backward")
def _softplus_backward(gradient: Tensor, values: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = values * beta
    return torch.where(scaled > threshold, gradient, gradient * scaled.sigmoid())


@_instead_of("elu")
def _elu(values: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Below zero exp(x) - 1, from tanh(x / 2), which is exact near zero."""
    half = (values * (input_scale / 2)).tanh()
    return torch.where(values > 0, values * scale, half / (1 - half) * (2 * alpha * scale))


_in_place("elu")


@_instead_of("elu_backward")
def _elu_backward(gradient: Tensor, alpha: float, scale: float, input_scale: float,
                  is_result: bool, values: Tensor) -> Tensor:
    below = values + alpha * scale if is_result else (values * input_scale).exp() * (alpha * scale)
    return gradient * torch.where(values > 0, scale, below * input_scale)


# Batch norm, layer norm and group norm

@_instead_of("batch_norm_update_stats")
def _batch_statistics(maps: Tensor, running_mean: Tensor | None, running_variance: Tensor | None,
                      momentum: float) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of (n, C, ...), float32; moves the running ones."""
    table = _table(maps)
    (positions, channels), blocks = table.shape, -(-len(table) // BLOCK)
    sums = table.new_empty(2, blocks, channels, dtype=torch.float32)
    mean, squares = (sums.new_empty(channels, dtype=torch.float64) for _ in range(2))
    assert run(f"statistics_{NAMES[table.dtype]}", (table, sums, mean, squares),
               (positions, channels, BLOCK))
    mean, squares = (each[:maps.shape[1]] for each in (mean, squares))
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_((mean * momentum).to(running_mean.dtype))
    if running_variance is not None:
        unbiased = squares / (positions - 1) * momentum
        running_variance.mul_(1 - momentum).add_(unbiased.to(running_variance.dtype))
    return mean.float(), (squares / positions).float()


def _table(maps: Tensor) -> Tensor:
    """(positions, channels) of (n, C, ...); with columns of zeros, to a multiple of LANES."""
    return _filled(maps.movedim(1, -1).reshape(-1, maps.shape[1]), LANES).contiguous()


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """(..., n) with zeros to a multiple; uncopied where n is a multiple, which pad would copy."""
    missing = -rows.shape[-1] % multiple
    return pad(rows, (0, missing)) if missing else rows


@_instead_of("native_batch_norm")
def _batch_norm(maps: Tensor, weight: Tensor | None, bias: Tensor | None,
                running_mean: Tensor | None, running_variance: Tensor | None, training: bool,
                momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    by_torch = _torch("native_batch_norm")
    if not training or not maps.numel():
        return by_torch(maps, weight, bias, running_mean, running_variance, training, momentum,
                        eps)
    mean, variance = _batch_statistics(maps, running_mean, running_variance, momentum)
    made, _, _ = by_torch(maps, weight, bias, mean, variance, False, 0.0, eps)
    return made, mean, (variance + eps).rsqrt()


@_instead_of("native_batch_norm_backward")
def _batch_norm_backward(gradient: Tensor, maps: Tensor, weight: Tensor | None,
                         running_mean: Tensor | None, running_variance: Tensor | None,
                         mean: Tensor | None, inverse: Tensor | None, training: bool, eps: float,
                         wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    if not training:
        assert running_mean is not None and running_variance is not None
        mean, inverse = running_mean, (running_variance + eps).rsqrt()
    assert mean is not None and inverse is not None
    if mean.dtype != torch.float32 or not maps.numel():
        return _torch("native_batch_norm_backward")(
            gradient, maps, weight, running_mean, running_variance, mean, inverse, training, eps,
            wanted)
    of_bias, with_map = _gradient_sums(gradient, maps)
    of_weight = ((with_map - mean * of_bias) * inverse).float()
    shape, count = (-1, *[1] * (maps.dim() - 2)), maps.numel() // maps.shape[1]
    factor = inverse if weight is None else inverse * weight
    of_maps = None
    if wanted[0]:
        of_maps = gradient.float() * factor.view(shape)
        if training:
            slope = -factor * inverse * of_weight / count
            shift = (-factor * of_bias / count - slope * mean).float()
            of_maps += maps * slope.view(shape) + shift.view(shape)
        of_maps = of_maps.to(maps.dtype)
    return of_maps, of_weight if wanted[1] else None, of_bias.float() if wanted[2] else None


def _gradient_sums(gradient: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the gradient and of gradient times maps, by channel, (C,), float64."""
    tables = _table(gradient.to(maps.dtype)), _table(maps)
    positions, channels = tables[0].shape
    sums = torch.empty(-(-positions // BLOCK), 2, channels)
    zero = sums.new_zeros(channels)  # the line that lets everything through is 0 * map + 1
    assert run(f"norm_sums_{NAMES[maps.dtype]}", (*tables, sums, zero, zero + 1),
               (positions, channels, BLOCK))
    of_bias, with_map = sums.sum(0, dtype=torch.float64)[:, :maps.shape[1]]
    return of_bias, with_map


@_instead_of("native_layer_norm_backward")
def _layer_norm_backward(gradient: Tensor, values: Tensor, shape: Sequence[int], mean: Tensor,
                         inverse: Tensor, weight: Tensor | None, bias: Tensor | None,
                         wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradient of the values is torch's, a row at a time; sums over rows are ours."""
    of_values, _, _ = _torch("native_layer_norm_backward")(
        gradient, values, shape, mean, inverse, weight, bias, [wanted[0], False, False])
    rows = gradient.reshape(-1, *shape).float()
    normalized = (values - mean) * inverse
    of_weight = (rows * normalized.reshape(-1, *shape)).sum(0) if wanted[1] else None
    of_bias = rows.sum(0) if wanted[2] else None
    return of_values, *(each if each is None else each.to(values.dtype)
                        for each in (of_weight, of_bias))


@_instead_of("native_group_norm")
def _group_norm(maps: Tensor, weight: Tensor | None, bias: Tensor | None, samples: int,
                channels: int, positions: int, groups: int, eps: float,
                ) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of each sample's groups; then each channel has its weight and bias."""
    rows = maps.float().reshape(samples * groups, channels // groups * positions)
    made, mean, inverse = torch.native_layer_norm(rows, rows.shape[1:], None, None, eps)
    made = made.view(maps.shape)
    if weight is not None:
        made *= _of_channels(weight, maps)
    if bias is not None:
        made += _of_channels(bias, maps)
    return made.to(maps.dtype), mean.view(samples, groups), inverse.view(samples, groups)


def _of_channels(numbers: Tensor, maps: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (maps.dim() - 2))


@_instead_of("native_group_norm_backward")
def _group_norm_backward(gradient: Tensor, maps: Tensor, mean: Tensor, inverse: Tensor,
                         weight: Tensor | None, samples: int, channels: int, positions: int,
                         groups: int, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    rows = maps.float().reshape(samples * groups, channels // groups * positions)
    mean, inverse = (each.float().view(-1, 1) for each in (mean, inverse))
    arrived = gradient.float()
    scaled = arrived if weight is None else arrived * _of_channels(weight, maps)
    of_maps, _, _ = _layer_norm_backward(scaled.reshape(rows.shape), rows, rows.shape[1:], mean,
                                         inverse, None, None, [wanted[0], False, False])
    normalized = ((rows - mean) * inverse).view(maps.shape)
    others = [0, *range(2, maps.dim())]
    of_weight, of_bias = ((arrived * normalized).sum(others) if wanted[1] else None,
                          arrived.sum(others) if wanted[2] else None)
    return of_maps if of_maps is None else of_maps.view(maps.shape), of_weight, of_bias


# Sums over a whole tensor

def _in_rows(values: Tensor) -> Tensor:
    """The numbers as rows, which torch sums one by one: (n, GRAIN), the last filled with zeros."""
    return _filled(values.reshape(-1), GRAIN).view(-1, GRAIN)


def _is_whole(values: Tensor, dim: Sequence[int] | None) -> bool:
    """Returns True if a sum over `dim` has one result, and torch would split it."""
    if values.numel() < GRAIN:
        return False
    kept = set(range(values.dim())) - {each % values.dim() for each in dim or ()} if dim else set()
    return all(values.shape[each] == 1 for each in kept)


@_instead_of("sum")
def _sum(values: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _sum_over(values, None, dtype=dtype)


@_instead_of("sum.dim_IntList")
def _sum_over(values: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *,
              dtype: torch.dtype | None = None) -> Tensor:
    by_torch = _torch("sum.dim_IntList")
    if not _is_whole(values, dim):
        return by_torch(values, dim, keepdim, dtype=dtype)
    rows = by_torch(_in_rows(values), [1], False, dtype=dtype)
    total = _sum_over(rows, None)  # of whatever is left, in rows again
    one = by_torch(values[(slice(0, 1),) * values.dim()], dim, keepdim, dtype=dtype)
    return total.view(one.shape)


@_instead_of("mean")
def _mean(values: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _mean_over(values, None, dtype=dtype)


@_instead_of("mean.dim")
def _mean_over(values: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *,
               dtype: torch.dtype | None = None) -> Tensor:
    if not _is_whole(values, dim):
        return _torch("mean.dim")(values, dim, keepdim, dtype=dtype)
    return _sum_over(values, dim, keepdim, dtype=dtype).div_(values.numel())


@_instead_of("linalg_vector_norm")
def _vector_norm(values: Tensor, ord: float = 2, dim: Sequence[int] | None = None,
                 keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if ord != 2 or not _is_whole(values, dim):
        return _torch("linalg_vector_norm")(values, ord, dim, keepdim, dtype=dtype)
    return _sum_over(values.square(), dim, keepdim, dtype=dtype).sqrt_()


_into("sum.IntList_out", "sum.dim_IntList")
_into("mean.out", "mean.dim")
