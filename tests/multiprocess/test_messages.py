"""Strategies that send messages of their own, rounded formats, and DDP's hooks.

Mutations that turn this red: add from right to left in ShardTree.mean (reversed values);
let reduce_scatter_all_gather sum the first slices; drop `wanted.sub_` in Wire.pack
(errors pile up); drop `add_(row)` (nothing is sent); let OverlappedAllReduce send a bucket when it
is full and not in its turn; drop `same_layout`; drop what `_send_the_rest` takes, or always send
zeros there; MIN for MAX in Used; drop `fill` from `completed`; drop `_used.drop` from `average` or
CrossStepAllReduce._update, or what it gives back; drop the residual from `state`; drop
`_require_in_range` from Wire.unpack; count 4 bytes a number in `counted`; `copy=False` in
Wire.pack.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.core.failures import RanksDisagree, UsageError
from common.settings.strategies import SYNC_NAMES
from common.step.gradient_check import NotFinite
from common.step.gradient_sync import GradientSync
from PartThree.comm_hooks import HOOKS
from PartThree.ddp import OWN_BUFFERS, buckets
from PartTwo import pipelined
from PartTwo.buckets import Bucket, fill_buckets
from PartTwo.overlapped import OverlappedAllReduce
from PartTwo.strategies import SyncOptions, create_strategy
from PartTwo.wire import Wire
from tests.facts import says
from tests.multiprocess.test_parity import OVERLAPPING
from tests.ranks import run_ranks


def noise(rank: int, step: int = 0, size: int = 5003) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + rank))


def mean_by(strategy: str, chunk_bytes: int = 1000) -> list[float]:
    pipelined.CHUNK_BYTES = chunk_bytes
    gradient = noise(dist.get_rank())
    create_strategy(strategy).average([gradient])
    return gradient.tolist()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("strategy", ["gather-scatter-pipelined", "reduce-scatter"])
def test_sums_in_the_order_of_one_tree_bit_for_bit(strategy, ranks):
    expected = noise(0) + noise(1)
    if ranks > 2:
        expected += noise(2) + noise(3) if ranks == 4 else noise(2)
    for found in run_ranks(ranks, mean_by, strategy):
        assert found == (expected / ranks).tolist()


def overlapped(order: list[int]) -> list[list[float]]:
    """Gradients that come in the given order, in buckets of one parameter each; the means."""
    parameters = [nn.Parameter(torch.zeros(10)) for _ in order]
    sync = OverlappedAllReduce(SyncOptions(bucket_mb=1e-6))
    sync.prepare(nn.ParameterList(parameters), torch.optim.SGD(parameters))
    for number in order if dist.get_rank() else sorted(order):
        (parameters[number] * float(number + dist.get_rank())).sum().backward()
    sync.average([])
    return [parameter.grad.tolist() for parameter in parameters]


def test_buckets_leave_in_one_order_whatever_order_gradients_come_in():
    for means in run_ranks(3, overlapped, [2, 0, 1]):
        for number, mean in enumerate(means):
            assert mean == pytest.approx([number + 1] * 10)


def weights_where_rank_0_used_both(strategy: str) -> list[float]:
    return weights_after(strategy, SyncOptions(), [[0] if dist.get_rank() else [0, 1]] * 2)


@pytest.mark.parametrize("strategy", SYNC_NAMES)
def test_a_gradient_that_only_one_rank_has_counts_as_zero_elsewhere(strategy):
    for weights in run_ranks(2, weights_where_rank_0_used_both, strategy):
        assert weights == pytest.approx([1 - 2 * 0.1 * 0.3, 1 - 2 * 0.1 * 0.3 / 2])


def learned_from_two_micro_batches(strategy: str) -> list[list[float]]:
    """The first of them uses one parameter, and the second another; how far each has moved."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    sync, optimizer = create_strategy(strategy), torch.optim.SGD(parameters, 1.0)
    sync.prepare(nn.ParameterList(parameters), optimizer)
    with sync.no_sync():
        (parameters[0] * (1.0 + dist.get_rank())).sum().backward()
    parameters[1].sum().backward()
    sync.average([parameter.grad for parameter in parameters])
    optimizer.step()
    sync.settle()
    return [parameter.tolist() for parameter in parameters]


@pytest.mark.parametrize("strategy", ["all-reduce", *OVERLAPPING])
def test_what_only_an_earlier_micro_batch_used_keeps_its_gradient(strategy):
    assert run_ranks(2, learned_from_two_micro_batches, strategy) == [[[-1.5] * 2, [-1.0] * 2]] * 2


def weights_after(strategy: str, options: SyncOptions, used: list[list[int]],
                  **kinds: float) -> list[float]:
    """The weights, of one element each, that used[step] names in each step of SGD."""
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    sync, optimizer = create_strategy(strategy, options), torch.optim.SGD(parameters, 0.1, **kinds)
    sync.prepare(nn.ParameterList(parameters), optimizer)
    for numbers in used:
        optimizer.zero_grad()
        sum(0.3 * parameters[number].sum() for number in numbers).backward()
        sync.average([p.grad for p in parameters if p.grad is not None])
        optimizer.step()
        sync.settle()
    return [parameter.item() for parameter in parameters]


@pytest.mark.parametrize("strategy", OVERLAPPING)
def test_what_no_rank_used_is_left_alone_as_by_the_flat_all_reduce(strategy):
    """Neither weight decay nor momentum moves it."""
    found, expected = (run_ranks(2, partial(weights_after, momentum=0.9, weight_decay=0.1), name,
                                 SyncOptions(), [[0, 1], [0, 1], [0], [0]])
                       for name in (strategy, "all-reduce"))
    assert found == [pytest.approx(each) for each in expected]


@pytest.mark.parametrize("strategy", ["all-reduce", *OVERLAPPING])
def test_what_rounding_took_waits_until_a_rank_uses_the_parameter_again(strategy):
    """Meanwhile momentum does not move it; 0.3 is not a number of bf16."""
    run = partial(weights_after, momentum=0.9)
    once, pause, again = (run_ranks(2, run, strategy, SyncOptions(wire="bf16"), used)[0][1]
                          for used in ([[0, 1]], [[0, 1], [0], [0]], [[0, 1], [0], [0, 1]]))
    assert once == pause != 1
    first, second = 0.30078125, 0.298828125  # 0.3 in bf16, and 0.3 without what that was too much
    assert again == pytest.approx(1 - 0.1 * (1.9 * first + second), abs=1e-6)


def prepared_with_own_layout() -> str:
    weight = nn.Parameter(torch.zeros(2, 3, 4, 4))
    if dist.get_rank() == 1:
        weight = nn.Parameter(weight.detach().to(memory_format=torch.channels_last))
    try:
        OverlappedAllReduce(SyncOptions(bucket_mb=1e-6)).prepare(
            nn.ParameterList([weight]), torch.optim.SGD([weight]))
    except RanksDisagree as disagreement:
        return str(disagreement)
    return ""


def test_another_memory_format_on_one_rank_is_refused_on_all():
    for said in run_ranks(2, prepared_with_own_layout):
        assert says(said, "rank 1", "rank 0", "memory format")


def test_buckets_close_when_they_reach_their_size():
    parameters = [nn.Parameter(torch.zeros(n)) for n in (10, 200, 10, 10, 90)]
    sizes = [bucket.size for bucket in fill_buckets(parameters, 400)]
    assert sizes == [210, 110]


def test_a_gradient_lives_in_its_bucket_and_keeps_its_memory_format():
    weight = nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    bucket = Bucket([nn.Parameter(torch.zeros(5)), weight])
    weight.grad = torch.arange(96.0).view(2, 3, 4, 4)
    bucket.take(weight, [weight.grad])
    assert weight.grad.stride() == weight.stride()
    assert weight.grad.data_ptr() == bucket.rows[0][5:].data_ptr()
    assert torch.equal(weight.grad, torch.arange(96.0).view(2, 3, 4, 4))


def test_a_gradient_that_is_alone_travels_from_where_it_is():
    weight = nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    bucket = Bucket([weight])
    gradient = torch.arange(96.0).view(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight.grad = gradient
    bucket.take(weight, [gradient])
    row, = bucket.rows
    assert row.data_ptr() == weight.grad.data_ptr() == gradient.data_ptr()
    assert torch.equal(row.view(2, 4, 4, 3).permute(0, 3, 1, 2), weight.grad)


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_what_rounding_takes_is_sent_later(format):
    wire, sent, wanted = Wire(format), torch.zeros(5003), torch.zeros(5003)
    wire.expect([sent])
    for step in range(50):
        row = noise(0, step)
        wanted += row
        sent += wire.pack(0, row)
        assert torch.allclose(sent + wire.residuals()[0], wanted, atol=1e-4)
    assert float((sent - wanted).abs().max()) < 0.05  # one rounding, not fifty
    dtype = wire.pack(0, sent).dtype
    without = sum(noise(0, step).to(dtype).float() for step in range(50))
    assert float((sent - wanted).norm()) < 0.5 * float((without - wanted).norm())


def test_a_rounded_wire_says_that_there_are_other_gradients_than_before():
    wire = Wire("bf16")
    wire.expect([torch.zeros(5)])
    with pytest.raises(UsageError, match=r"\b5\b.*\b7\b"):
        wire.pack(0, torch.ones(7))


def test_what_has_the_wires_format_already_travels_as_it_is():
    wire, row = Wire("bf16"), noise(0).bfloat16()
    wire.expect([row])
    assert torch.equal(wire.pack(0, row), row)
    assert not wire.residuals()[0].any()


def overflowing(strategy: str, gradient: float) -> tuple[str, float]:
    weight = nn.Parameter(torch.zeros(3))
    sync, optimizer = create_strategy(strategy, SyncOptions(wire="fp16")), torch.optim.SGD([weight])
    sync.prepare(nn.ParameterList([weight]), optimizer)
    try:
        (weight * gradient).sum().backward()
        sync.average([weight.grad])
        optimizer.step()
        sync.settle()
    except NotFinite as found:
        return str(found), weight.abs().max().item()
    return "", weight.abs().max().item()


@pytest.mark.parametrize("strategy, gradient", [
    ("all-reduce", 7e4), ("overlapped-all-reduce", 2e5), ("cross-step-all-reduce", 2e5),
    ("gather-scatter", 4e4), ("all-reduce", 4e4), ("reduce-scatter", 4e4)])
def test_what_overflows_in_fp16_reaches_no_weights(strategy, gradient):
    """The last three overflow in the sum of two ranks only."""
    for said, weight in run_ranks(2, overflowing, strategy, gradient):
        assert says(said, "--wire fp16") and weight == 0


def compressed(strategy: str) -> tuple[list[float], int]:
    from tests.multiprocess.test_parity import SyncOptions, averaged
    sync, [mean] = averaged(strategy, [noise(dist.get_rank())], SyncOptions(wire="bf16"))
    return mean.tolist(), sync.bytes_sent


@pytest.mark.parametrize("strategy", ["all-reduce", "overlapped-all-reduce",
                                      "cross-step-all-reduce", "reduce-scatter"])
def test_a_rounded_wire_halves_the_bytes_and_nearly_keeps_the_mean(strategy):
    expected = sum(noise(rank) for rank in range(3)) / 3
    for mean, sent in run_ranks(3, compressed, strategy):
        error = (torch.tensor(mean) - expected).abs().max().item()
        assert 0 < error < 0.05
        assert sent == pytest.approx(2 * 5003 * 2 * 2 / 3, abs=20)


def hooked(name: str, steps: int) -> tuple[float, list[int]]:
    """The error of the last step's mean against the exact one, and the bytes of each step."""
    layers = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64, 3))
    torch.manual_seed(0)
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.1)
    layers = layers.to(memory_format=torch.channels_last)
    counter, sent = GradientSync(), []
    replica = DistributedDataParallel(layers, **OWN_BUFFERS, **buckets(0.01))
    replica.register_comm_hook(counter, HOOKS[name])
    images = noise(dist.get_rank(), size=4 * 64 * 9).view(4, 64, 3, 3)
    for _ in range(steps):
        before = counter.bytes_sent
        layers.zero_grad()
        replica(images).square().sum().backward()
        sent.append(counter.bytes_sent - before)
    own = torch.autograd.grad(layers(images).square().sum(), list(layers.parameters()))
    error = 0.0
    for parameter, gradient in zip(layers.parameters(), own, strict=True):
        dist.all_reduce(gradient)
        exact = gradient / dist.get_world_size()
        error = max(error, float((parameter.grad - exact).norm() / exact.norm()))
    return error, sent


NUMBERS = 64 * 64 * 9 + 64 + 64 * 3 + 3


@pytest.mark.parametrize("name, limit, bytes_each", [("float32", 1e-6, 4), ("bf16", 0.02, 2),
                                                     ("fp16", 0.002, 2)])
def test_comm_hooks_of_ddp_average_and_are_counted(name, limit, bytes_each):
    for error, sent in run_ranks(2, hooked, name, 3):
        assert error < limit
        assert name == "float32" or error > 1e-6
        assert sent == pytest.approx([bytes_each * NUMBERS] * 3, abs=8)


def test_a_bucket_has_one_dtype():
    dtypes = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
    found = fill_buckets([nn.Parameter(torch.zeros(3, dtype=each)) for each in dtypes], 400)
    assert [[each.dtype for each in bucket.parameters] for bucket in found] == [
        dtypes[:1], dtypes[1:3], dtypes[3:]]
