"""Portable arithmetic: equal bits with AVX2 and AVX-512 and any threads, and close to torch's.

Mutations that turn this red: add_wide a multiplication and an addition where there is no AVX-512; a
sum over a whole tensor, sigmoid, log_softmax or sqrt left to torch; blocks of positions / threads
in `statistics`; mish among AGREEING, and in OF_EACH; `_in_place` left out; a kernel's gradient
times two; `what_is_left` without fork_rng, or without the buffers' return.
"""

import ctypes
import json
import os
import random
import subprocess
import sys
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from common.arithmetic import portable, products
from common.arithmetic.compiled import compiled
from common.core.provenance import ROOT, processor_flags
from tests.portable_cases import (
    EMULATED,
    IMAGES,
    MODELS,
    attention,
    convolutions,
    needs_emulator,
)

has_both = pytest.mark.skipif("avx512f" not in processor_flags(), reason="AVX-512 beside AVX2")


@pytest.fixture(autouse=True)
def in_portable_arithmetic():
    portable.use("portable")
    yield
    portable.use("native")


@cache
def digests(arithmetic: str, capability: str, threads: int, *emulator: str) -> dict[str, str]:
    made = subprocess.run(
        [*emulator, sys.executable, "-m", "tests.portable_cases", arithmetic, str(threads)],
        cwd=ROOT, env={**os.environ, "ATEN_CPU_CAPABILITY": capability}, check=True,
        capture_output=True)
    return json.loads(made.stdout.splitlines()[-1])


@pytest.mark.parametrize(("capability", "threads"), [
    ("avx2", 2), ("avx2", 3), pytest.param("avx512", 1, marks=has_both),
    pytest.param("avx512", 3, marks=has_both)])
def test_the_same_bits_by_any_vectors_and_threads(capability, threads):
    assert digests("portable", capability, threads) == digests("portable", "avx2", 1)


@needs_emulator
@pytest.mark.timeout(900)
def test_the_same_bits_on_a_processor_of_another_make():
    assert digests("portable", "avx2", 1, *EMULATED) == digests("portable", "avx2", 1)


@has_both
def test_native_bits_differ():  # so that the test above can fail
    one, other = digests("native", "avx2", 1), digests("native", "avx512", 2)
    differing = {name for name in one if one[name] != other[name]}
    assert {*MODELS, "sum", "sigmoid", "log_softmax of rows"} - {"gates"} <= differing


@pytest.mark.parametrize("kernel", [
    lambda a, b: a @ b.T, lambda a, b: torch.addmm(b[:, 0], a, b.T, beta=0.5, alpha=2),
    lambda a, b: torch.bmm(a[None], b.T[None]), lambda a, b: a @ b[0], lambda a, b: a[0] @ b[0],
    lambda a, b: torch.baddbmm(b[None], a[None, :40], b[None, :, :40]),
    lambda a, b: functional.gelu(a), lambda a, b: functional.gelu(a, approximate="tanh"),
    lambda a, b: a.softmax(0), lambda a, b: a.log_softmax(-1), lambda a, b: a.exp(),
    lambda a, b: (a.square() + 1).sqrt(),
    lambda a, b: a.square().log(), lambda a, b: a.tanh(), lambda a, b: a.sigmoid(),
    lambda a, b: functional.silu(a), lambda a, b: functional.logsigmoid(a),
    lambda a, b: functional.elu(a, 0.7), lambda a, b: functional.elu(a * 1, inplace=True),
    lambda a, b: functional.celu(a * 0.01, 2.0), lambda a, b: functional.selu(a),
    lambda a, b: functional.softplus(a), lambda a, b: functional.softplus(a, 2, 1),
    lambda a, b: functional.group_norm(a.view(25, 40, 40), 5, b[0], b[1]),
    lambda a, b: functional.group_norm(a.view(5, 40, 10, 20), 8),
    lambda a, b: a.sum(), lambda a, b: a.mean(), lambda a, b: a.norm(),
    lambda a, b: functional.layer_norm(a, (40,), b[0], b[1]),
    lambda a, b: functional.batch_norm(a, None, None, b[0], b[1], True),
    lambda a, b: functional.batch_norm(a, b[0].detach(), b[1].detach() ** 2, b[0], b[1]),
    lambda a, b: functional.conv1d(a.view(25, 40, 40), b[:, :, None].repeat(1, 1, 3)),
    lambda a, b: functional.conv1d(a[None], b[:, :, None].repeat(1, 25, 3)),
    lambda a, b: functional.conv2d(a.view(5, 4, 50, 40), b.view(8, 2, 10, 10)[:, :, :3, :5],
                                   b[0, :8], (2, 1), (0, 3), (3, 2), 2)])
def test_values_and_gradients_are_torchs_in_float64(kernel):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator).requires_grad_() for shape in
            ((1000, 40), (40, 40)))
    of = torch.randn(kernel(a, b).shape, generator=generator)

    def value_and_gradients(a, b):
        made = kernel(a, b)
        return [made, *torch.autograd.grad(made, (a, b), of.to(made.dtype), allow_unused=True)]

    mine = value_and_gradients(a, b)
    exact = value_and_gradients(*(each.detach().double().requires_grad_() for each in (a, b)))
    for one, other in zip(mine, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == torch.float32
            assert (one - other).norm() <= 3e-6 * other.norm()


# A convolution's definition: a sum over the window's rows, columns and channels; the weight's
# gradient, over samples and positions; the maps', over outputs, then the kernel's positions.
REFERENCE = """
struct Sizes { long n, c, h, w, k, kh, kw, step, edge, apart, oh, ow; };
extern "C" void reference(const float* maps, const float* weight, const float* bias,
                          const float* gradient, float* out, float* of_maps, float* of_weight,
                          Sizes s) {
    auto at = [&](long n, long y, long x, long c) -> long {  // -1 in the border of zeros
        y -= s.edge; x -= s.edge;
        return y < 0 || y >= s.h || x < 0 || x >= s.w ? -1 : ((n * s.c + c) * s.h + y) * s.w + x;
    };
    auto tap = [&](long k, long y, long x, long c) {
        return ((k * s.c + c) * s.kh + y) * s.kw + x;
    };
    for (long n = 0; n < s.n; ++n)
        for (long y = 0; y < s.oh; ++y)
            for (long x = 0; x < s.ow; ++x)
                for (long k = 0; k < s.k; ++k) {
                    const long to = ((n * s.k + k) * s.oh + y) * s.ow + x;
                    float sum = 0;
                    for (long i = 0; i < s.kh; ++i)
                        for (long j = 0; j < s.kw; ++j)
                            for (long c = 0; c < s.c; ++c) {
                                const long from = at(n, y * s.step + i * s.apart,
                                                     x * s.step + j * s.apart, c);
                                const float value = from < 0 ? 0.0f : maps[from];
                                sum = __builtin_fmaf(value, weight[tap(k, i, j, c)], sum);
                                float& slope = of_weight[tap(k, i, j, c)];
                                slope = __builtin_fmaf(gradient[to], value, slope);
                            }
                    out[to] = sum + bias[k];
                }
    for (long i = 0; i < s.kh; ++i)
        for (long j = 0; j < s.kw; ++j)
            for (long n = 0; n < s.n; ++n)
                for (long y = 0; y < s.oh; ++y)
                    for (long x = 0; x < s.ow; ++x)
                        for (long c = 0; c < s.c; ++c) {
                            const long to = at(n, y * s.step + i * s.apart,
                                               x * s.step + j * s.apart, c);
                            float sum = 0;
                            for (long k = 0; k < s.k; ++k) {
                                const long from = ((n * s.k + k) * s.oh + y) * s.ow + x;
                                sum = __builtin_fmaf(gradient[from], weight[tap(k, i, j, c)], sum);
                            }
                            if (to >= 0) of_maps[to] += sum;
                        }
}
"""


class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in "n c h w k kh kw step edge apart oh ow".split()]


@pytest.mark.parametrize("seed", range(200))
def test_convolutions_are_their_definition_to_the_bit(seed):
    chance = random.Random(seed)
    n, c, k, h, w = (chance.randint(1, most) for most in (5, 7, 40, 11, 11))
    kh, kw, step, edge, apart = (chance.randint(1, most) for most in (3, 3, 2, 2, 2))
    oh, ow = ((side + 2 * edge - apart * (kernel - 1) - 1) // step + 1
              for side, kernel in ((h, kh), (w, kw)))
    if oh < 1 or ow < 1:
        h, w, oh, ow = h + 8, w + 8, oh + 8 // step, ow + 8 // step
    generator = torch.Generator().manual_seed(seed)
    maps, weight, bias, gradient = (
        torch.randn(shape, generator=generator)
        for shape in ((n, c, h, w), (k, c, kh, kw), (k,), (n, k, oh, ow)))
    wanted = [torch.zeros_like(each) for each in (gradient, maps, weight)]
    compiled(REFERENCE).library.reference(
        *(ctypes.c_void_p(each.data_ptr()) for each in (maps, weight, bias, gradient, *wanted)),
        Sizes(n, c, h, w, k, kh, kw, step, edge, apart, oh, ow))
    if seed % 2:
        maps = maps.contiguous(memory_format=torch.channels_last)
    maps.requires_grad_()
    weight.requires_grad_()
    made = functional.conv2d(maps, weight, bias, step, edge, apart)
    found = [made, *torch.autograd.grad(made, (maps, weight), gradient)]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_loss_of_each_pixel_has_a_gradient(layout):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(4, 5, 7, 6, generator=generator).contiguous(memory_format=layout)
    targets = torch.randint(0, 5, (4, 7, 6), generator=generator)

    def gradient(of):
        functional.cross_entropy(of.requires_grad_(), targets).backward()
        return of.grad

    exact = gradient(scores.double())
    assert (gradient(scores) - exact).norm() <= 3e-6 * exact.norm()


@pytest.mark.parametrize("mistake", [
    lambda: nn.Linear(25, 5)(torch.ones(20, 24)), lambda: nn.Linear(4, 5)(torch.ones(2, 4).long()),
    lambda: torch.ones(2, 3, 4) @ torch.ones(2, 5, 4), lambda: torch.ones(4) @ torch.ones(5),
    lambda: nn.Conv2d(3, 4, 3)(torch.ones(2, 5, 8, 8)),
    lambda: nn.Conv2d(3, 4, 3)(torch.ones(2, 3, 8, 8).long()),
    lambda: nn.Conv2d(3, 4, 30)(torch.ones(2, 3, 8, 8))])
def test_shapes_and_dtypes_that_do_not_fit_are_refused_in_torchs_words(mistake):
    with pytest.raises(RuntimeError, match="shape|size|expected|type"):
        mistake()


def test_a_root_is_the_nearest_float():
    numbers = torch.rand(100_003) * 1000
    assert torch.equal(numbers.sqrt(), numbers.double().sqrt().float())


def test_bfloat16_is_multiplied_as_float32_and_rounded_once():
    a, b = (torch.randn(70, 70).bfloat16() for _ in range(2))
    assert torch.equal(a @ b, (a.float() @ b.float()).bfloat16())


def test_other_dtypes_and_native_arithmetic_stay_torchs():
    a, ours = torch.randn(64, 64), products.is_portable()
    mine = a.sigmoid()
    double = a.double() @ a.double()
    portable.use("native")
    assert ours and not products.is_portable()
    assert torch.equal(double, a.double() @ a.double())
    assert not torch.equal(mine, a.sigmoid())


@pytest.mark.parametrize(("model", "left"), [
    (convolutions, ""), (attention, ""),
    (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Mish()), "convolution, mish"),
    (lambda: nn.Sequential(nn.Flatten(2), nn.GRU(1024, 8)), ""),
    (lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(1024, 8)), "mkldnn_rnn_layer")])
def test_what_a_model_leaves_to_torch_is_named(model, left):
    torch.manual_seed(0)
    built, state = model(), torch.get_rng_state()
    before = {name: value.clone() for name, value in built.state_dict().items()}
    inputs = torch.zeros(2, 16, dtype=int) if model is attention else torch.randn(2, *IMAGES[1:])
    state = torch.get_rng_state()
    assert portable.what_is_left(built, inputs) == left
    portable.note(left)
    assert products.arithmetic() == ("portable, but for: " + left if left else "portable")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in built.state_dict().items())
