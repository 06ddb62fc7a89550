"""Our matrix products against float64; and which processor gets which.

Mutations that turn this red: `adds` always false; the second row of pairs of the last odd one not
zero; `inputs` for `depth`; `to_step` for `left.row_step`; `exchange<8>` left out; `transposed`
always false; AMX, or the vendor, left out of `way_of`; torch's products, in a convolution, for any
of ours; the filters of forward not transposed.
"""

import pytest
import torch

from common.arithmetic import convolution as fast_convolution
from common.arithmetic import products
from common.arithmetic.convolution import FastConv2d
from common.arithmetic.kernels import NAMES, has, run
from common.arithmetic.products import Way, add_outer, times, way_of

FLOAT, BF16 = torch.float32, torch.bfloat16
needs_vectors = pytest.mark.skipif(not has("times_float"), reason="a processor with AVX-512")


def random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@needs_vectors
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 31, 64])
@pytest.mark.parametrize(("inputs", "outputs"), [(160, 96), (32, 64), (32, 32)])
@pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=str)
def test_both_products_in_float64(rows, inputs, outputs, dtype):
    if not has(f"times_{NAMES[dtype]}"):
        pytest.skip("a processor that multiplies pairs of bfloat16")
    tiles = random(1, 3, rows, inputs, dtype=dtype)
    factors = random(2, 3, inputs, outputs, dtype=dtype)
    of_products = random(3, 3, rows, outputs, dtype=dtype)
    found = times(tiles, factors, ours=True)
    assert torch.equal(found, times(tiles, factors.mT.contiguous().mT, ours=True))
    alone = add_outer(None, of_products, tiles, ours=True)
    sums = add_outer(torch.ones(3, outputs, inputs), of_products, tiles, ours=True)
    assert found.dtype == dtype
    one_rounding, many = (2.0 ** -8 if dtype == BF16 else 1e-6), 2e-6
    torch.testing.assert_close(found.double(), tiles.double() @ factors.double(),
                               rtol=one_rounding, atol=many * 8)
    torch.testing.assert_close(1 + alone, sums, rtol=many, atol=many * 8)
    torch.testing.assert_close(sums.double(), 1 + of_products.double().mT @ tiles.double(),
                               rtol=many, atol=many * 8)


@needs_vectors
@pytest.mark.parametrize(("dtype", "error"), [(FLOAT, 1e-5), (BF16, 3e-2)], ids=str)
def test_a_convolution_by_our_products(dtype, error, monkeypatch):
    if not has(f"times_{NAMES[dtype]}"):
        pytest.skip("a processor that multiplies pairs of bfloat16")
    ran: list[str] = []
    monkeypatch.setattr(products, "run", lambda name, *more: ran.append(name) or run(name, *more))
    monkeypatch.setattr(fast_convolution, "way_of", lambda *_: Way(dtype, ours=True))
    monkeypatch.setattr(fast_convolution, "ROWS", 4)
    generator = torch.Generator().manual_seed(4)
    x, weight, gradient = (torch.randn(shape, generator=generator).to(dtype).requires_grad_()
                           for shape in ((7, 64, 4, 4), (32, 64, 3, 3), (7, 32, 4, 4)))
    fast = FastConv2d(64, 32, 3, padding=1, bias=False)
    fast.algorithm, fast.weight = "winograd-4", torch.nn.Parameter(weight.float())
    found = torch.autograd.grad(y := fast(x), (x, fast.weight), gradient)
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    wanted = torch.autograd.grad(exact, (x, weight), gradient.double())
    for one, other in zip((y, *found), (exact, *wanted), strict=True):
        assert (one - other).double().norm() < error * other.double().norm()
    assert sorted(ran) == [f"outer_{NAMES[dtype]}"] * 2 + [f"times_{NAMES[dtype]}"] * 4


@pytest.mark.parametrize(("sets", "flags", "of_float", "of_bf16"), [
    ("AVX2", {"AuthenticAMD"}, Way(FLOAT), Way(FLOAT)),
    ("AVX512", {"GenuineIntel", "avx512_bf16"}, Way(FLOAT), Way(FLOAT)),
    ("AVX512 AMX", {"GenuineIntel", "avx512_bf16"}, Way(FLOAT), Way(BF16)),
    ("AVX512", {"AuthenticAMD"}, Way(FLOAT, True), Way(FLOAT, True)),
    ("AVX512", {"AuthenticAMD", "avx512_bf16"}, Way(FLOAT, True), Way(BF16, True))])
def test_which_processor_gets_which(sets, flags, of_float, of_bf16, monkeypatch):
    monkeypatch.setattr(products, "instruction_sets", lambda: sets)
    monkeypatch.setattr(products, "processor_flags", lambda: flags)
    monkeypatch.setattr(products, "has", lambda name: True)
    assert way_of(FLOAT, 64, 96) == of_float and way_of(BF16, 64, 96) == of_bf16
    assert way_of(FLOAT, 64, 48) == Way(FLOAT)
    assert way_of(torch.float64, 64, 96) == Way(torch.float64)
    monkeypatch.setattr(products, "has", lambda name: False)
    assert way_of(FLOAT, 64, 96) == Way(FLOAT) and not way_of(BF16, 64, 96).ours
