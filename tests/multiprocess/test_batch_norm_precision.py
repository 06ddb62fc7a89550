"""Synchronised batch norm in float32, bfloat16 and autocast, and far from zero."""

import pytest
import torch
from torch import Tensor, nn

from common.model.batch_norm import SynchronizedBatchNorm2d
from tests.multiprocess.batch_norm_cases import after_training_batch, cubes, make_batches, shard_of
from tests.ranks import run_ranks


def layer_in_halves(dtype: torch.dtype) -> dict[str, Tensor]:
    _, batch, factor = (shard_of(b.to(dtype), [7, 9]) for b in make_batches("channels_last", 16))
    return after_training_batch(SynchronizedBatchNorm2d(3), batch, factor, 1.0)


def largest_error(value: Tensor, exact: Tensor) -> float:
    return ((value - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_errs_no_more_than_torch_and_keeps_dtype_and_format(dtype):
    results = run_ranks(2, layer_in_halves, dtype)
    _, batch, factor = (b.to(dtype) for b in make_batches("channels_last", 16))
    torchs_own = after_training_batch(nn.BatchNorm2d(3), batch, factor, 1.0)
    exact = after_training_batch(nn.BatchNorm2d(3).double(), batch.double(), factor.double(), 1.0)
    joined = {key: torch.cat([result[key] for result in results]) for key in ("output", "input")}
    joined |= {key: results[0][key] + results[1][key] for key in exact if "gradient" in key}
    joined |= {key: results[1][key] for key in ("running_mean", "running_var")}
    for key, value in joined.items():
        assert value.dtype == torchs_own[key].dtype
        allowed = 1.5 * largest_error(torchs_own[key], exact[key]) + 5e-7
        assert largest_error(value, exact[key]) < allowed, key
    for result in results:
        assert result["output"].is_contiguous(memory_format=torch.channels_last)
        assert result["input"].is_contiguous(memory_format=torch.channels_last)


def network_under_autocast() -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(5)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), SynchronizedBatchNorm2d(8))
    images = torch.randn(8, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        output = network(images)
        loss = output.float().square().mean()
    loss.backward()
    return output.detach(), [parameter.grad for parameter in network.parameters()]


def test_autocast_gives_bfloat16_output_and_the_gradients_of_one_rank():
    (expected, gradients), *_ = run_ranks(1, network_under_autocast)
    for output, parts in run_ranks(2, network_under_autocast):
        assert output.dtype == torch.bfloat16  # both ranks hold the same images: statistics agree
        torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-2)
        for part, gradient in zip(parts[2:], gradients[2:], strict=True):
            assert part.dtype == torch.float32
            torch.testing.assert_close(part, gradient, rtol=1e-2, atol=1e-2)


def far_from_zero() -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(64, 2, 64, 32, generator=generator) + 1e4


def output_far_from_zero(channels_last: bool) -> Tensor:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    input = shard_of(far_from_zero(), [40, 24]).contiguous(memory_format=memory_format)
    return SynchronizedBatchNorm2d(2)(input).detach()


@pytest.mark.parametrize("channels_last", [False, True])
def test_mean_of_ten_thousand_deviations_does_not_spoil_float32(channels_last):
    output = torch.cat(run_ranks(2, output_far_from_zero, channels_last))
    expected = nn.BatchNorm2d(2).double()(far_from_zero().double())
    assert (output - expected).abs().max() < 4e-3  # float32 steps are 1e-3 there


def formats_on_two_ranks() -> list[bool]:
    """Says if output and raw gradient are channels_last like the input, though the loss is not?"""
    batch, _, factor = make_batches("channels_last", 4)
    input = batch.requires_grad_()
    output = SynchronizedBatchNorm2d(3).double()(input)
    loss = cubes(output.contiguous(), factor.contiguous())
    gradient = torch.autograd.grad(loss, input)[0]
    return [t.is_contiguous(memory_format=torch.channels_last) for t in (output, gradient)]


def test_output_and_raw_gradient_keep_channels_last():
    assert run_ranks(2, formats_on_two_ranks) == [[True, True]] * 2
