"""Averages in 4 and 8 bits: small messages, equal replicas, and nothing lost for good.

Mutations that turn this red, in quantised: 2 ** (bits - 1) for `largest_code`; swap the halves of
a byte in decode; `& 15` without `^ 8`; `= row` for `+= row` (no residual), or the same for the
mean; count `outgoing` instead of `mine`; leave either residual out of `state`. In local_sgd:
drop `_mean.prepare`, or `_mean.state`; another rate or momentum in `local_sgd`. In encode: without
`clamp_`, or with a smallest scale that is subnormal; `row.dtype` for at_least_float32. Drop
require_finite from `_round`.
"""

import random

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from common.settings.settings import LOCAL_WIRES
from common.settings.strategies import LOCAL_SYNC_NAMES
from common.step.gradient_check import NotFinite
from PartTwo.quantised import BITS, BLOCK, QuantisedFlat, decode, encode
from PartTwo.strategies import SyncOptions, create_strategy
from PartTwo.wire import Wire
from tests.facts import says
from tests.multiprocess.test_messages import noise
from tests.multiprocess.test_parity import trained
from tests.ranks import run_ranks
from tests.small import small_model

LARGEST_CODE = {8: 127, 4: 7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", BITS.values())
def test_rounds_each_block_by_half_a_step_of_its_own_scale(bits, dtype):
    magnitudes = torch.logspace(-12, 6, 9, dtype=dtype)[:, None]
    row = (noise(0, size=9 * BLOCK).to(dtype).view(9, BLOCK) * magnitudes).flatten()
    row[3 * BLOCK:4 * BLOCK] = 0
    message = encode(row, bits)
    assert message.dtype is torch.uint8
    assert message.numel() == 9 * (BLOCK * bits // 8 + 2)
    blocks, found = row.view(9, BLOCK), decode(message, bits, dtype).view(9, BLOCK)
    step = blocks.abs().amax(dim=1, keepdim=True) / LARGEST_CODE[bits]
    roundings = 0.5 + LARGEST_CODE[bits] * 2 ** -8  # of the number, and of the scale to bf16
    assert bool(((found - blocks).abs() <= roundings * step).all())
    assert torch.equal(found[3], torch.zeros(BLOCK, dtype=dtype))


SMALLEST = 2.0 ** -126  # a scale


def plainly(block: list[float], bits: int) -> list[float]:
    """Rounds a block number by number, in Python's arithmetic."""
    largest = LARGEST_CODE[bits]
    scale = float(torch.tensor(max(SMALLEST, max(map(abs, block)) / largest)).bfloat16())
    return [round(number / scale) * scale for number in block]


def odd_block(dice: random.Random, dtype: torch.dtype) -> Tensor:
    """Numbers of one magnitude, or of many: subnormal, zero, usual or huge."""
    finest, largest = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max / 4
    magnitudes = {"subnormal": finest / 8, "smallest": finest, "zero": 0.0, "minus zero": -0.0,
                  "tiny": 1e-6, "usual": 1.0, "huge": min(largest, 1e38), "scale": 64 * SMALLEST}
    chosen = dice.sample(list(magnitudes.values()), dice.choice([1, 1, 2, 3]))
    return torch.tensor([dice.uniform(-1, 1) * dice.choice(chosen) for _ in range(BLOCK)],
                        dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", BITS.values())
def test_rounds_any_numbers_as_plain_arithmetic_does(bits, dtype):
    dice = random.Random(f"{bits} {dtype}")
    row = torch.stack([odd_block(dice, dtype) for _ in range(60)]).flatten()
    found = decode(encode(row, bits), bits, dtype).double()
    wanted = torch.tensor([number for block in row.double().view(-1, BLOCK).tolist()
                           for number in plainly(block, bits)], dtype=torch.float64)
    assert torch.equal(found, wanted.to(dtype).double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_a_rounded_wire_loses_nothing_of_any_numbers(format, dtype):
    dice, wire = random.Random(f"{format} {dtype}"), Wire(format)
    rows = [torch.cat([odd_block(dice, dtype) for _ in range(20)]).clamp(-1e4, 1e4)
            for _ in range(3)]
    wire.expect(rows[:1])
    sent = sum(wire.pack(0, row.clone()).double() for row in rows)
    owed, wanted = wire.residuals()[0].double(), sum(row.double() for row in rows)
    assert torch.allclose(sent + owed, wanted, rtol=0, atol=4e4 * torch.finfo(dtype).eps)


def overflowing(bits: int) -> str:
    model = vector(3).double()
    sync = QuantisedFlat(bits)
    sync.prepare(model, SGD(model.parameters()))
    try:
        sync.average_all([torch.tensor([1.0, 1e300, 1.0], dtype=torch.float64)])
    except NotFinite as found:
        return str(found)
    return ""


@pytest.mark.parametrize("bits", BITS.values())
def test_what_no_scale_can_mean_is_told(bits):
    told, = run_ranks(1, overflowing, bits)
    assert says(told, f"--wire int{bits}")


@pytest.mark.parametrize("bits", BITS.values())
def test_knows_every_code(bits):
    largest = LARGEST_CODE[bits]
    row = torch.arange(-largest, largest + 1).repeat(BLOCK)[:BLOCK * (2 * largest + 1)].float()
    assert torch.equal(decode(encode(row, bits), bits, torch.float32), row)


def test_the_command_line_knows_every_format():
    assert tuple(BITS) == LOCAL_WIRES


def vector(size: int) -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.zeros(size))])


def averaged(bits: int, steps: int, size: int) -> tuple[list[float], list[float], int]:
    """The last mean and the sum of all means; what each rank has to send differs every step."""
    sync, total = QuantisedFlat(bits), torch.zeros(size)
    model = vector(size)
    sync.prepare(model, SGD(model.parameters()))
    for step in range(steps):
        row = noise(dist.get_rank(), step, size)
        sync.average([row])
        total += row
    return row.tolist(), total.tolist(), sync.bytes_sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", BITS.values())
def test_all_ranks_get_nearly_the_mean_and_in_the_end_nothing_is_lost(bits, ranks):
    steps, size = 30, 5003
    means = [sum(noise(rank, step) for rank in range(ranks)) / ranks for step in range(steps)]
    found = run_ranks(ranks, averaged, bits, steps, size)
    assert all(each == found[0] for each in found)
    last, total = (torch.tensor(numbers) for numbers in found[0][:2])
    error, residual = last - means[-1], total - sum(means)
    largest = 2 * 4.5 / LARGEST_CODE[bits]  # two roundings at both ends, of numbers up to 4.5
    assert 0 < float(error.abs().max()) < largest
    assert 0 < float(residual.abs().max()) < largest  # two, not sixty
    assert float(residual.norm()) < 1.5 * float(error.norm())


def sent_and_kept(wire: str, every: int, iterations: int) -> tuple[int, bool]:
    """Bytes sent in an epoch of local SGD; whether the state for checkpoints has a residual."""
    model = vector(100_000)
    sync = create_strategy("local-sgd", SyncOptions(
        every=every, wire=wire, iterations=iterations))
    optimizer = SGD(model.parameters(), 0.1)
    sync.prepare(model, optimizer)
    for iteration in range(iterations):
        sync.average([])
        for parameter in model.parameters():
            parameter.data += noise(0, iteration, 100_000)
        optimizer.step()
    residuals = [tensor for tensor in sync.state() if 0 < float(tensor.abs().max()) < 1]
    return sync.bytes_sent, bool(residuals)


@pytest.mark.parametrize("wire, every", [("float32", 50), ("bf16", 25), ("int8", 13),
                                         ("int4", 7)])
def test_sends_a_fiftieth_of_all_reduces_bytes(wire, every):
    iterations = 196
    for sent, has_residual in run_ranks(4, sent_and_kept, wire, every, iterations):
        assert 0.75 < 50 * sent / (iterations * 2 * 3 / 4 * 400_000) <= 1
        assert has_residual == (wire != "float32")


def trained_with_a_break(wire: str, cut: int) -> list[Tensor]:
    """Weights after 12 steps, two a round; after `cut` steps all is made anew from the state."""
    saved: list[Tensor] = []
    for steps in (range(cut), range(cut, 12)):
        torch.manual_seed(3)
        model = nn.Linear(30, 40)
        optimizer = SGD(model.parameters(), 0.1, 0.9)
        sync = create_strategy("diloco", SyncOptions(every=2, wire=wire, iterations=12))
        sync.prepare(model, optimizer)
        if saved:
            for parameter in model.parameters():  # a resumed run has them from the leader
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            for tensor, value in zip(sync.state(), saved, strict=True):
                tensor.copy_(value)
        for step in steps:
            optimizer.zero_grad()
            model(noise(dist.get_rank(), step, 60).view(2, 30)).square().sum().backward()
            sync.average([each.grad for each in model.parameters()])
            optimizer.step()
        saved = [each.detach().clone() for each in sync.state()]
    sync.settle()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("wire", BITS)
def test_from_the_state_in_a_checkpoint_it_goes_on_bit_for_bit(wire):
    """Where the ranks agree, and in the middle between two rounds."""
    whole, *resumed = (run_ranks(2, trained_with_a_break, wire, cut) for cut in (12, 6, 7))
    for rank in range(2):
        for ranks in resumed:
            assert all(map(torch.equal, ranks[rank], whole[rank]))


@pytest.mark.parametrize("wire, tolerance", [("bf16", 0.2), ("int8", 0.2), ("int4", 0.3)])
@pytest.mark.parametrize("strategy", LOCAL_SYNC_NAMES)
def test_rounded_progress_ends_near_where_exact_progress_does(strategy, wire, tolerance):
    """The error counts relative to the way there; batch norm over three samples amplifies it."""
    exact = in_a_row(run_ranks(3, trained, strategy, SyncOptions(
        every=2, iterations=5))[0][1])
    found = [in_a_row(weights) for _, weights in run_ranks(
        3, trained, strategy, SyncOptions(every=2, wire=wire, iterations=5))]
    assert all(torch.equal(row, found[0]) for row in found)
    way = exact - in_a_row(list(small_model().parameters()))
    assert 0 < float((found[0] - exact).norm() / way.norm()) < tolerance


def in_a_row(weights: list[Tensor]) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in weights])
