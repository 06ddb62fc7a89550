"""The compiled transforms and torch's: the same bits; and what happens without a compiler.

Mutations that turn this red: drop -ffp-contract=off; add the tiles from the last on; round with
`+ 0x8000` (ties), or forget NaN; leave out `| DENORMAL`; `continue` for `sums[...] +=` at a map's
edge; load a cached file without looking at its digest; leave the processor, or the source, out of a
file's name; do not look at the folders above the cache; leave out the sticky bit or the private
group; name the phase after the lock, or leave it so.
"""

import os

import pytest
import torch

from common.arithmetic import compiled as compiling
from common.arithmetic import kernels
from common.arithmetic.bilinear import ALGORITHMS, fits
from common.arithmetic.compiled import Compiled, compiled
from common.arithmetic.tile_transforms import gather, spread
from common.core.progress import process_progress
from tests.facts import says

FLOAT, BF16 = torch.float32, torch.bfloat16
SOURCE = 'extern "C" int answer() { return 42; }\n'
CASES = [(name, size, kind) for name in ALGORITHMS for size in (2, 4, 8, 12)
         for kind in ("inputs", "outputs") if fits(name, size)]


def maps(size: int, dtype: torch.dtype, samples: int = 5, channels: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    made = torch.randn(samples, channels, size, size, generator=generator).to(dtype)
    made[0, 0, 0, 0] = torch.nan
    return made.contiguous(memory_format=torch.channels_last)


def both_ways(tiling, x: torch.Tensor, dtype: torch.dtype, biased: bool) -> list[torch.Tensor]:
    """Spread, and gathered again, with what there is."""
    tiles = spread(x, tiling, dtype)
    back = torch.empty_like(x)
    gather(tiles, tiling, back, torch.arange(x.shape[1]) / 7 if biased else None)
    return [tiles, back]


def assert_same_bits(tiling, x, dtype, monkeypatch) -> None:
    assert kernels.library().library, "this test needs a C++ compiler"
    fast = [*both_ways(tiling, x, dtype, True), *both_ways(tiling, x, dtype, False)]
    monkeypatch.setattr(kernels, "library", lambda: Compiled(None, "not today"))
    plain = [*both_ways(tiling, x, dtype, True), *both_ways(tiling, x, dtype, False)]
    for one, other in zip(fast, plain, strict=True):
        whole = torch.int16 if one.dtype == BF16 else torch.int32
        is_nan = one.isnan()
        assert torch.equal(is_nan, other.isnan()) and bool(is_nan.any())
        assert torch.equal(one.view(whole)[~is_nan], other.view(whole)[~is_nan])


@pytest.mark.parametrize(("dtype", "of_tiles"), [(FLOAT, FLOAT), (BF16, BF16), (BF16, FLOAT)],
                         ids=str)
@pytest.mark.parametrize(("name", "size", "kind"), CASES)
def test_compiled_and_torchs_have_the_same_bits(name, size, kind, dtype, of_tiles, monkeypatch):
    assert_same_bits(getattr(ALGORITHMS[name], kind), maps(size, dtype), of_tiles, monkeypatch)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_few_samples_are_split_by_channels_among_many_threads(kind, monkeypatch):
    threads = torch.get_num_threads()
    torch.set_num_threads(7)
    try:
        assert_same_bits(getattr(ALGORITHMS["winograd-4"], kind),
                         maps(8, FLOAT, samples=1, channels=96), FLOAT, monkeypatch)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_filters_have_the_same_bits(name, dtype, monkeypatch):
    assert_same_bits(ALGORITHMS[name].filters, maps(3, FLOAT), dtype, monkeypatch)


@pytest.mark.parametrize("odd", [0.0, 1e-40, torch.nan])
def test_rounds_as_torch_does(odd):
    """1 + 2^-8 and 1 + 3 * 2^-8 lie between two numbers of bfloat16; 1e-40 is denormal."""
    x = torch.full((1, 16, 3, 3), 0.0)
    x[0, :, 0, 0] = torch.tensor([1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8, -torch.inf, -odd] * 4)
    tiles = spread(x.contiguous(memory_format=torch.channels_last),
                   ALGORITHMS["winograd-2"].filters, BF16)
    assert tiles[0, 0, :2].tolist() == [1.0, 1 + 2.0 ** -6]
    assert torch.equal(tiles[0, 0].view(torch.int16), x[0, :, 0, 0].to(BF16).view(torch.int16))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.cache_clear()
    yield tmp_path / "data-parallel-training/compiled"
    compiled.cache_clear()


def answer() -> int:
    compiled.cache_clear()
    return compiled(SOURCE).library.answer()


def test_what_was_compiled_is_kept(own_cache, capfd, monkeypatch):
    assert answer() == 42
    assert says(capfd.readouterr().err, own_cache)
    assert answer() == 42 and not capfd.readouterr().err
    monkeypatch.setattr(compiling, "_processor", lambda: ["another"])
    assert answer() == 42 and says(capfd.readouterr().err, own_cache)
    assert len(list(own_cache.glob("*.so"))) == 2


@pytest.mark.parametrize("name", ["_compile", "_locked"])  # compiled here, or by another process
def test_meanwhile_the_phase_is_compiling(own_cache, monkeypatch, name):
    phases, work, before = [], getattr(compiling, name), process_progress().phase

    def noting(*given):
        phases.append(process_progress().phase)
        return work(*given)
    monkeypatch.setattr(compiling, name, noting)
    assert answer() == 42 and phases == ["compiling"] and process_progress().phase == before


@pytest.mark.parametrize("damage", [
    lambda content: content[:5000], lambda content: b"no", lambda content: b""])
def test_a_damaged_file_is_made_anew(own_cache, capfd, damage):
    assert answer() == 42
    path, = own_cache.glob("*.so")
    capfd.readouterr()
    content = path.read_bytes()
    path.unlink()  # this process has the file itself in its memory
    path.write_bytes(damage(content))
    assert answer() == 42 and says(capfd.readouterr().err, own_cache)


@pytest.mark.parametrize(("compiler", "why"), [
    ("no-such-compiler", "C++ compiler"), ("false", "/bin/false")])
def test_without_a_compiler_there_is_a_reason(own_cache, monkeypatch, compiler, why):
    monkeypatch.setenv("CXX", compiler)
    assert why in compiled(SOURCE).why_not and compiled(SOURCE).library is None


def test_source_that_does_not_compile_is_no_error(own_cache):
    found = compiled("this is no C++")
    assert found.library is None and "error" in found.why_not


def test_a_folder_that_others_may_write_is_not_used(own_cache):
    own_cache.mkdir(parents=True)
    own_cache.chmod(0o777)
    assert answer() == 42
    assert not list(own_cache.glob("*.so"))


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@as_root
@pytest.mark.parametrize("give_away, is_used", [
    (lambda above, cache: None, True),
    (lambda above, cache: above.chmod(0o1777), True),  # as /tmp is
    (lambda above, cache: above.chmod(0o777), False),
    (lambda above, cache: (above.chmod(0o775), os.chown(above, 0, NOBODY)), False),
    (lambda above, cache: (above.chmod(0o775), os.chown(above, 0, 0)), True),  # a private group
    (lambda above, cache: os.chown(above, NOBODY, NOBODY), False),
    (lambda above, cache: os.chown(cache, NOBODY, NOBODY), False),
    (lambda above, cache: cache.chmod(0o777), False),
    (lambda above, cache: (cache / "compiled").chmod(0o777), False)])
def test_only_a_folder_that_nobody_else_can_replace_is_used(give_away, is_used, tmp_path,
                                                            monkeypatch):
    """A library that lies there is loaded: whoever can put another in its place runs code here."""
    above = tmp_path / "shared" / "cache"
    (above / "data-parallel-training" / "compiled").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(above))
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path / "no" / "temp"))
    (tmp_path / "no").write_text("in the way")
    give_away(above.parent, above / "data-parallel-training")
    if is_used:
        assert compiling._folder() == above / "data-parallel-training" / "compiled"
    else:
        with pytest.raises(PermissionError, match="cache folder"):
            compiling._folder()


@as_root
def test_without_a_folder_of_ones_own_nothing_is_compiled(own_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path))
    tmp_path.chmod(0o777)
    found = compiled(SOURCE)
    assert found.library is None and says(found.why_not, "cache folder")
    assert not list(tmp_path.rglob("*.so"))


def test_a_link_leads_to_the_folder_that_is_judged(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert compiling._folder().is_relative_to(tmp_path / "real")
