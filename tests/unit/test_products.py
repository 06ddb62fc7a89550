"""Our matrix products against their definition; and which processor gets which.

Mutations that turn this red: `adds` always false; the second row of pairs of the last odd one not
zero; `inputs` for `depth`; `to_step` for `left.row_step`; an `exchange` left out; `transposed`
always false; a panel's missing columns not zero; sums that start anew at each DEEP, then added up;
AMX, or the vendor, left out of `way_of`; torch's products, in a convolution, for any of ours; the
filters of forward not transposed.
"""

import ctypes

import pytest
import torch

from common.arithmetic import convolution as fast_convolution
from common.arithmetic import products
from common.arithmetic.compiled import compiled
from common.arithmetic.convolution import FastConv2d
from common.arithmetic.kernels import NAMES, has, run
from common.arithmetic.products import Way, add_outer, times, way_of

FLOAT, BF16 = torch.float32, torch.bfloat16
# The definition: to (m, n) = sums, or zero, and left (m, k) times right (k, n) more.
REFERENCE = """
extern "C" void reference(const float* left, const float* right, const float* sums, float* to,
                          long m, long k, long n) {
    for (long at = 0; at < m * n; ++at) {
        float sum = sums ? sums[at] : 0.0f;
        for (long each = 0; each < k; ++each)
            sum = __builtin_fmaf(left[at / n * k + each], right[each * n + at % n], sum);
        to[at] = sum;
    }
}
"""


def reference(left: torch.Tensor, right: torch.Tensor, sums: torch.Tensor | None = None,
              ) -> torch.Tensor:
    (m, k), n = left.shape, right.shape[1]
    made = torch.empty(m, n)
    function = compiled(REFERENCE).library.reference
    function(*(ctypes.c_void_p(each if each is None else each.data_ptr())
               for each in (left, right, sums, made)), *map(ctypes.c_long, (m, k, n)))
    return made


def bits(values: torch.Tensor) -> torch.Tensor:
    """All bits, but for those of a NaN, whose digits are not defined."""
    return values.masked_fill(values.isnan(), torch.nan).view(torch.int32)


@pytest.mark.parametrize("seed", range(300))
def test_the_definition_to_the_bit(seed):
    generator = torch.Generator().manual_seed(seed)
    m, k, n = (int(2 ** (8 * each)) for each in torch.rand(3, generator=generator).tolist())
    k = {0: 0, 1: 1100, 2: 512, 3: 513}.get(seed, k)
    m = {4: 700, 5: 257}.get(seed, m)
    left, right, sums = (torch.randn(shape, generator=generator)
                         for shape in ((m, k), (k, n), (m, n)))
    if seed % 3 == 0 and k:
        for each in (left, right):
            places = torch.randint(each.numel(), (5,), generator=generator)
            each.view(-1)[places] = torch.tensor([torch.inf, torch.nan, 1e-40, -0.0, 3e38])
    wanted, columns = bits(reference(left, right)), left.T.contiguous()[None]
    for made in (times(left[None], right[None], ours=True),
                 times(left[None], right.T.contiguous().mT[None], ours=True),
                 add_outer(None, columns, right[None], ours=True)):
        assert torch.equal(bits(made[0]), wanted)
    assert torch.equal(bits(add_outer(sums.clone()[None], columns, right[None], ours=True)[0]),
                       bits(reference(left, right, sums)))


def random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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
    assert way_of(FLOAT, 64, 48) == Way(FLOAT)  # native products are of whole pairs of vectors
    assert way_of(torch.float64, 64, 96) == Way(torch.float64)
    products.choose("portable")
    assert way_of(FLOAT, 65, 3) == way_of(BF16, 64, 96) == Way(FLOAT, True)
    products.choose("native")
    monkeypatch.setattr(products, "has", lambda name: False)
    assert way_of(FLOAT, 64, 96) == Way(FLOAT) and not way_of(BF16, 64, 96).ours
