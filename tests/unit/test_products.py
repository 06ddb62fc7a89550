"""Our matrix products of tiles in panels, against float64; and which processor gets which.

Mutations that turn this red: `panel * left.panel_step` left out; `adds` always false; the second
row of pairs of the last odd one not zero; `c / PER` for `c`; AMX, or the vendor, left out of
`way_of`; `exchange<8>` left out; `width != PANEL` for the number of panels.
"""

import pytest
import torch

from common.model import products
from common.model.bilinear import ALGORITHMS
from common.model.kernels import NAMES, has
from common.model.products import PANEL, Way, add_outer, filters, times, way_of
from common.model.tile_transforms import spread

FLOAT, BF16 = torch.float32, torch.bfloat16
needs_vectors = pytest.mark.skipif(not has("times_float"), reason="a processor with AVX-512")


def panels(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(P, rows, C) as (P, C / PANEL, rows, PANEL)."""
    return values.unflatten(2, (-1, PANEL)).transpose(1, 2).to(dtype).contiguous()


def whole(tiles: torch.Tensor) -> torch.Tensor:
    return tiles.double().transpose(1, 2).flatten(2)


def random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return panels(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dtype)


@needs_vectors
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 31, 64])
@pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=str)
def test_both_products_in_float64(rows, dtype):
    if not has(f"times_{NAMES[dtype]}"):
        pytest.skip("a processor that multiplies pairs of bfloat16")
    tiles, factors = random(1, 3, rows, 160, dtype=dtype), random(2, 3, 160, 96, dtype=dtype)
    found, wanted = times(tiles, factors), whole(tiles) @ whole(factors)
    assert found.shape == (3, 3, rows, PANEL) and found.dtype == dtype
    of_products = random(3, 3, rows, 96, dtype=dtype)
    alone = add_outer(None, of_products, tiles)
    sums = add_outer(torch.ones(3, 5, 96, PANEL), of_products, tiles)
    one_rounding, many = (2.0 ** -8 if dtype == BF16 else 1e-6), 2e-6
    torch.testing.assert_close(whole(found), wanted, rtol=one_rounding, atol=many * 8)
    torch.testing.assert_close(1 + alone, sums, rtol=many, atol=many * 8)
    torch.testing.assert_close(whole(sums), 1 + whole(of_products).mT @ whole(tiles),
                               rtol=many, atol=many * 8)


@pytest.mark.parametrize(("sets", "flags", "of_float", "of_bf16"), [
    ("AVX2", {"AuthenticAMD"}, Way(FLOAT), Way(FLOAT)),
    ("AVX512", {"GenuineIntel", "avx512_bf16"}, Way(FLOAT), Way(FLOAT)),
    ("AVX512 AMX", {"GenuineIntel", "avx512_bf16"}, Way(FLOAT), Way(BF16)),
    ("AVX512", {"AuthenticAMD"}, Way(FLOAT, PANEL), Way(FLOAT, PANEL)),
    ("AVX512", {"AuthenticAMD", "avx512_bf16"}, Way(FLOAT, PANEL), Way(BF16, PANEL))])
def test_which_processor_gets_which(sets, flags, of_float, of_bf16, monkeypatch):
    monkeypatch.setattr(products, "instruction_sets", lambda: sets)
    monkeypatch.setattr(products, "processor_flags", lambda: flags)
    monkeypatch.setattr(products, "has", lambda name: True)
    assert way_of(FLOAT, 64, 96) == of_float and way_of(BF16, 64, 96) == of_bf16
    assert way_of(FLOAT, 64, 48) == Way(FLOAT)
    assert way_of(torch.float64, 64, 96) == Way(torch.float64)
    monkeypatch.setattr(products, "has", lambda name: False)
    assert way_of(FLOAT, 64, 96) == Way(FLOAT) and way_of(BF16, 64, 96).panel == 0


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 64), (64, 32), (32, 32)])
@pytest.mark.parametrize("panel", [0, PANEL])
@needs_vectors
def test_as_many_channels_as_a_panel_has(panel, inputs, outputs):
    """One panel of all channels is torch's, also where that is as wide as one of ours."""
    generator = torch.Generator().manual_seed(5)
    left, right = (torch.randn(3, 7, sides, generator=generator) for sides in (outputs, inputs))
    split = (lambda values: panels(values, FLOAT)) if panel else (lambda values: values[:, None])
    found = add_outer(None, split(left), split(right))
    torch.testing.assert_close(whole(found), whole(left.mT[:, None] @ right[:, None]),
                               rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sides", [(48, 32), (5, 3)])
def test_filters_with_rows_of_outputs(sides):
    weight = torch.randn(*sides, 3, 3).to(memory_format=torch.channels_last)
    tiling = ALGORITHMS["winograd-2"].filters
    found = filters(weight, tiling, Way(FLOAT), transposed=True)
    by_hand = products._transposed(weight)
    assert torch.equal(by_hand, weight.transpose(0, 1))
    assert torch.equal(found, spread(by_hand, tiling, FLOAT))
