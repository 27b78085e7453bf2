"""Pages read tile by tile in Triton against float32 pages in torch: under the interpreter, on a GPU natively."""

import pytest
import torch

from kvmm.kernels.hadamard import reference
from kvmm.kernels.hadamard.triton import launch
from kvmm.kernels.quantize import DensePages, ScalarBook
from kvmm.kernels.quantize import chain as vector_chain
from kvmm.kernels.quantize import dense as dense_pages
from kvmm.kernels.quantize.layout import PlaneLayout
from kvmm.kernels.quantize.tiles import TilePages

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TIES = 1e-3  # share of codes that may differ, by one step


def vectors(tokens: int, dim: int, dtype: torch.dtype = torch.float32, batch: int = 2, seed: int = 0) -> torch.Tensor:
    """``[B, 2, tokens, dim]`` with strides of a model's projection, channel means and channels of unlike widths."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, tokens, 2, dim, generator=generator) * (0.2 + torch.rand(dim, generator=generator) * 3)
    x += 4 * torch.randn(2, dim, generator=generator)
    return x.to(DEVICE, dtype).transpose(1, 2)


def holes(x: torch.Tensor, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with no tokens behind ``last`` in the second sequence, copies of that token in their place."""
    valid = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device)
    valid[1, last:] = False
    x = x.clone()
    x[1, :, last:] = x[1, :, last - 1 : last]
    return x, valid


def both(x: torch.Tensor, page_size: int, valid: torch.Tensor | None = None) -> tuple[DensePages, TilePages]:
    return DensePages.cut(x, page_size, valid), TilePages(x, page_size, valid)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    scale = float(expected.float().abs().max()) + 1e-9
    assert float((found.float() - expected.float()).abs().max()) <= tolerance * scale


def same_parameters(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal under the interpreter. Ranges and divisions are exact on a GPU as well, but whether nothing else moves a
    last bit there has not been tried, so the bound is that of before."""
    assert found.dtype == expected.dtype and found.is_contiguous()
    if found.is_cuda:
        close(found, expected, 1e-3 if found.dtype == torch.float16 else 2e-6)
    else:
        assert torch.equal(found, expected)


def same_codes(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype == torch.uint8
    assert float((found != expected).float().mean()) <= TIES


# -- rotation and norms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation(dim, dtype):
    """To fp32's last digits, whatever the input: nothing is rounded to tf32."""
    x = vectors(70, dim, dtype)
    exact = x.double() @ reference.hadamard_matrix(dim, DEVICE).double().T
    rotated, norm = launch(x, rotation=True, norm="l2")
    assert float((rotated - exact).norm() / exact.norm()) < 3e-6
    assert float((rotated - exact).abs().max() / exact.abs().max()) < 3e-6
    close(norm, exact.norm(dim=-1).float())
    back, none = launch(rotated, rotation=True, transposed=True)
    assert none is None
    close(back, x.float())


@pytest.mark.parametrize("norm", ["l2", "max", "mean", "sum"])
@pytest.mark.parametrize("rotation", [False, True])
@pytest.mark.parametrize("tokens", [1, 17, 130])
def test_norms(norm, rotation, tokens):
    x = vectors(tokens, 80, torch.bfloat16)
    nothing, found = launch(x, rotation=rotation, store=False, norm=norm)
    assert nothing is None
    close(found, reference.vector_norm(reference.rotate(x) if rotation else x.float(), norm))


# -- statistics -----------------------------------------------------------------------------------------------------

CHAINS = {
    "plain": lambda p, n: p,
    "oscar": lambda p, n: p.rotate().divide(n),
    "rd": lambda p, n: p.divide(n).transform(matrix(p)[None]).subtract(matrix(p)[None, :, 0]),
    "prompt": lambda p, n: p.transform(matrix(p).expand(p.shape[0], -1, -1, -1)),
    "quarot": lambda p, n: p.rotate().subtract(matrix(p)[None, :, 0]),
    "replaced": lambda p, n: replaced(p),
    "replaced, rotated": lambda p, n: replaced(p).rotate(),
    "replaced by one": lambda p, n: replaced_by_one(p.transform(matrix(p)[None])),
    "replaced by one, rotated": lambda p, n: replaced_by_one(p).rotate(),
    "replaced by one, shifted": lambda p, n: replaced_by_one(p).subtract(matrix(p)[None, :, 0]),
}


def matrix(pages) -> torch.Tensor:
    """float32 ``[H, D, D]`` that fp16 holds, as every stored transform is."""
    generator = torch.Generator().manual_seed(5)
    heads, dim = pages.shape[1], pages.shape[-1]
    return (torch.randn(heads, dim, dim, generator=generator) / dim**0.5).half().float().to(DEVICE)


def replaced(pages):
    generator = torch.Generator().manual_seed(6)
    keep = (torch.rand(pages.shape[:4], generator=generator) > 0.1).to(DEVICE)
    return pages.replace(keep, pages.page_means(keep))


def replaced_by_one(pages):
    """One vector of a head in place of what is left out of all pages."""
    keep = (torch.rand(pages.shape[:4], generator=torch.Generator().manual_seed(6)) > 0.1).to(DEVICE)
    return pages.replace(keep, pages.kept_mean(keep))


@pytest.mark.parametrize("chain", list(CHAINS))
@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.float16), (80, torch.float32)])
def test_chains(chain, dim, dtype, monkeypatch):
    """What a chain makes of vectors, seen through the ranges of groups; programs take several pages."""
    monkeypatch.setattr(vector_chain, "_PROGRAMS", 1)
    x, valid = holes(vectors(110, dim, dtype), 70)
    dense, tiled = both(x, 32, valid)
    norm = dense.token_norms("l2").half()
    expected, found = (CHAINS[chain](pages, norm) for pages in (dense, tiled))
    for group in (16, 64, None):
        groups = expected.groups(group)
        for a, b in zip(found.channel_ranges(groups), expected.channel_ranges(groups), strict=True):
            close(a, b, 1e-5)
    close(found.mean(), expected.mean(), 1e-5)
    parts = list(found.parts())
    close(torch.cat([part.values for part in parts], 2), expected.values, 1e-5)
    close(torch.cat([part.weight for part in parts], 2), expected.weight)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("norm", ["l2", "max", "mean"])
def test_token_norms(norm, shared):
    dense, tiled = both(vectors(70, 64, torch.bfloat16), 32)
    close(tiled.token_norms(norm, shared), dense.token_norms(norm, shared))
    close(tiled.rotate().token_norms(norm, shared), dense.rotate().token_norms(norm, shared))
    offset = torch.randn(1, 2, 64, device=DEVICE)
    close(tiled.subtract(offset).token_norms(norm, shared), dense.subtract(offset).token_norms(norm, shared), 1e-5)


@pytest.mark.parametrize("chain", ["plain", "transformed", "divided and transformed"])
def test_token_excess(chain):
    """Also of a channel far from the others, and of slots without a token, which do not count."""
    x, valid = holes(vectors(300, 64, torch.bfloat16), 250)
    x[:, :, 70] *= 9
    x[:, 1, 131, 5] += 40
    found = []
    for pages in both(x, 64, valid):
        if "divided" in chain:
            pages = pages.divide(pages.divisors(torch.float32))
        if "transformed" in chain:
            pages = pages.transform(matrix(pages)[None])
        found.append(pages.token_excess(3.0))
    dense, tiled = found
    assert dense.shape == (2, 2, 5, 64) and float((dense > 0).float().mean()) < 0.5
    torch.testing.assert_close(tiled.flatten(2)[:, :, :300], dense.flatten(2)[:, :, :300], rtol=2e-3, atol=2e-3)
    if chain == "plain":
        assert dense.flatten(2)[:, 1].topk(2).indices.sort().values.tolist() == [[70, 131]] * 2


def test_padding_does_not_count():
    """Slots without a token, and fill, enter neither means, magnitudes nor levels."""
    x, valid = holes(vectors(150, 64), 70)
    dense, tiled = both(x, 32, valid)
    other = x.clone()
    other[1, :, 70:] = x[1, :, 3:4]  # another real token in the place of those without one
    tiled_other = TilePages(other, 32, valid)
    for group in (32, 64, None):
        groups = dense.groups(group)
        close(tiled.channel_magnitudes(groups), dense.channel_magnitudes(groups), 1e-5)
        close(tiled_other.channel_magnitudes(groups), dense.channel_magnitudes(groups), 1e-5)
    groups = dense.groups(None)
    bits = torch.full((64,), 2)
    for pages in (tiled, tiled_other):
        close(pages.mean(), dense.mean(), 1e-5)
        for a, b in zip(pages.fit_levels(bits, groups), dense.fit_levels(bits, groups), strict=True):
            close(a, b, 1e-4)


@pytest.mark.parametrize("programs", [1, 512])
@pytest.mark.parametrize("group", [16, 64, None])
def test_fitted_levels(group, programs, monkeypatch):
    """Bits of every kind, with an offset far larger than what varies; many pages a program, and one."""
    monkeypatch.setattr(vector_chain, "_PROGRAMS", programs)
    x = vectors(300, 64)
    x[..., 5] += 600
    dense, tiled = both(x, 32)
    groups, bits = dense.groups(group), torch.tensor([8, 6, 4, 2, 1, 0, 1, 2] * 8)
    scale, zero_point = tiled.fit_levels(bits, groups)
    expected_scale, expected_zero = dense.fit_levels(bits, groups)
    # one code that falls on the other side of a border moves a group of 16 tokens a little
    assert float((scale - expected_scale).abs().mean() / expected_scale.abs().mean()) < 1e-3
    assert float((zero_point - expected_zero).abs().mean()) < 1e-3


@pytest.mark.parametrize("programs", [1, 128])
def test_stored_levels(programs, monkeypatch):
    """As they are stored, of vectors that meet a matrix: long runs of pages a program, and one page."""
    monkeypatch.setattr(vector_chain, "_LARGE_PROGRAMS", programs)
    x = vectors(600, 80, torch.bfloat16)
    norm = DensePages.cut(x, 32).divisors(torch.float16)
    dense, tiled = (CHAINS["rd"](pages, norm) for pages in both(x, 32))
    bits = torch.tensor([8, 6, 4, 4, 2, 2, 1, 0]).repeat_interleave(10)
    groups = dense.groups(None)
    exact = dense.fit_levels(bits, groups)
    for dtype in (torch.float16, torch.float32):
        scale, zero_point = tiled.fit_levels(bits, groups, dtype, 70)
        expected_scale, expected_zero = dense.fit_levels(bits, groups, dtype, 70)
        assert scale.is_contiguous() and scale.shape == expected_scale.shape == (2, 2, 1, 70)
        assert scale.dtype == expected_scale.dtype == zero_point.dtype == expected_zero.dtype == dtype
        assert torch.equal(expected_scale, exact[0][..., :70].to(dtype)) and torch.equal(
            expected_zero, exact[1].to(dtype)
        )
        close(scale, expected_scale, 2e-3)
        close(zero_point, expected_zero, 2e-3)
    # what the type cannot hold
    far = vectors(70, 80, torch.bfloat16) * 1e5
    scale, zero_point = TilePages(far, 32).fit_levels(bits, TilePages(far, 32).groups(None), torch.float16, 70)
    assert float(scale.max()) == 65504 and scale.isfinite().all() and zero_point.isfinite().all()


@pytest.mark.parametrize("tokens", [640, 700])
@pytest.mark.parametrize("programs", [1, 512])
def test_a_long_span_is_sampled(tokens, programs, monkeypatch):
    """Statistics of every third page of a span of more than three samples; nothing else is taken of a sample."""
    monkeypatch.setattr(dense_pages, "SAMPLED", 200)
    monkeypatch.setattr(vector_chain, "_PROGRAMS", programs)
    x, valid = holes(vectors(tokens, 64), 500)
    chosen = torch.arange(tokens, device=DEVICE) // 32 % 3 == 0
    picked = both(x[:, :, chosen], 32, valid[:, chosen])[0]
    keep = (torch.rand(2, 2, -(-tokens // 32), 32, generator=torch.Generator().manual_seed(4)) > 0.1).to(DEVICE)
    bits = torch.tensor([8, 6, 4, 2, 1, 0, 1, 2] * 8)
    levels = picked.fit_levels(bits, picked.groups(None))
    for pages in both(x, 32, valid):
        sample = pages.sample()
        assert sample.shape[2] == -(-pages.shape[2] // 3)
        close(sample.mean(), picked.mean(), 1e-5)
        for found, expected in zip(sample.fit_levels(bits, sample.groups(None)), levels, strict=True):
            assert float((found - expected).abs().mean() / expected.abs().mean()) < 1e-3
        close(sample.kept_mean(keep), picked.kept_mean(keep[:, :, ::3]), 1e-5)
    dense, tiled = both(x, 32, valid)
    excess = [pages.token_excess(1.0).flatten(2)[:, :, :tokens] for pages in (dense, tiled)]
    torch.testing.assert_close(*excess, rtol=2e-3, atol=2e-3)
    short = both(x[:, :, :383], 32)
    assert all(pages.sample() is pages for pages in short)


def test_divisors():
    """Norms as they are stored: within fp16, 1 for a vector of zeros or one too short for the type."""
    x = vectors(70, 64, torch.bfloat16)
    x[0, 0, :4] = torch.tensor([0.0, 1e-9, 3e4, 1.0], device=DEVICE, dtype=x.dtype)[:, None]
    for dtype in (torch.float16, torch.float32):
        expected, found = (pages.divisors(dtype) for pages in both(x, 32))
        assert found.dtype == expected.dtype == dtype and found.shape == expected.shape
        assert found[0, 0, 0, 0] == 1 and found[0, 0, 0, 2] == 65504
        assert (found[0, 0, 0, 1] == 1) == (dtype == torch.float16)
        torch.testing.assert_close(found, expected, rtol=1e-3 if dtype == torch.float16 else 2e-6, atol=0)
        offset = torch.randn(1, 2, 64, device=DEVICE)
        expected, found = (pages.subtract(offset).divisors(dtype) for pages in both(x, 32))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


# -- codes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("page_size", [32, 128])
def test_channel_codes(bits, transposed, page_size):
    x = vectors(150, 80, torch.bfloat16)
    dense, tiled = both(x, page_size)
    for group in (16, 32, 128, 256, None):
        groups = dense.groups(group)
        low, high = dense.channel_ranges(groups)
        scale, zero_point = ((high - low) / (2**bits - 1)).half(), low.half()
        expected = dense.channel_codes(scale, zero_point, groups, bits, transposed)
        same_codes(tiled.channel_codes(scale, zero_point, groups, bits, transposed), expected)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("dim", "groups"), [(64, 1), (64, 4), (80, 1), (80, 5), (96, 3), (256, 2)])
def test_token_codes(bits, transposed, dim, groups):
    dense, tiled = both(vectors(70, dim, torch.bfloat16), 32)
    dense, tiled = dense.rotate(), tiled.rotate()
    low, high = dense.token_ranges(groups)
    for a, b in zip(tiled.token_ranges(groups), (low, high), strict=True):
        close(a, b.contiguous())
    scale, zero_point = (p.contiguous() for p in (((high - low) / (2**bits - 1)).half(), low.half()))
    expected = dense.token_codes(scale, zero_point, bits, transposed)
    same_codes(tiled.token_codes(scale, zero_point, bits, transposed), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("dim", "groups"), [(64, 1), (80, 5), (96, 3), (256, 2)])
def test_codes_of_token_ranges(dim, groups, dtype):
    """Scales, zero points and codes from one kernel: those that ranges, parameters and codes in turn give."""
    x = vectors(70, dim, torch.bfloat16)
    x[0, 0, 3], x[0, 1, 5, 0] = 2.0, 1e5  # nothing to scale, and more than fp16 holds
    for bits, transposed in ((2, True), (4, False)):
        dense, tiled = both(x, 32)
        found, expected = (pages.token_range_codes(groups, bits, dtype, transposed) for pages in (tiled, dense))
        same_codes(found[0], expected[0])
        for a, b in zip(found[1:], expected[1:], strict=True):
            assert a.dtype == dtype
            same_parameters(a, b)
        found, expected = (pages.rotate().token_range_codes(groups, bits, dtype, False) for pages in (tiled, dense))
        for a, b in zip(found[1:], expected[1:], strict=True):
            close(a, b, 1e-3)
        assert float((found[0] != expected[0]).float().mean()) < 2e-2  # a last bit of a scale moves a few codes


@pytest.mark.parametrize("group", [16, 32, 64, None])
def test_parameters_of_channel_ranges(group):
    """From the kernel that finds the ranges; and ranges and magnitudes in one pass."""
    x, valid = holes(vectors(150, 80, torch.bfloat16), 70)
    x[0, 1, :, 7] = 1e5
    dense, tiled = both(x, 32, valid)
    groups = dense.groups(group)
    for dtype, bits in ((torch.float16, 2), (torch.float32, 4)):
        found, expected = (pages.channel_range_parameters(groups, bits, dtype) for pages in (tiled, dense))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == dtype
            same_parameters(a, b)
    for a, b in zip(tiled.channel_extent(groups), dense.channel_extent(groups), strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("share", [0.0, 0.125, 0.3, 1.0])
@pytest.mark.parametrize(("group", "page_size"), [(32, 64), (64, 64), (128, 32), (None, 64)])
def test_two_plane_codes(share, group, page_size):
    dense, tiled = both(vectors(150, 80, torch.float16), page_size)
    groups = dense.groups(group)
    low, high = dense.channel_ranges(groups)
    boosted = (high - low).topk(round(share * 80), -1).indices.sort(-1).values
    bits = torch.full_like(low, 2).scatter_(-1, boosted, 4)
    scale, zero_point = ((high - low) / (2**bits - 1)).half(), low.half()
    expected = dense.two_plane_codes(scale, zero_point, groups, boosted)
    for a, b in zip(tiled.two_plane_codes(scale, zero_point, groups, boosted), expected, strict=True):
        assert a.shape == b.shape
        if b.numel():
            same_codes(a, b)


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "counts",
    [{8: 3, 6: 5, 4: 10, 2: 20, 1: 12, 0: 30}, {2: 80}, {1: 50, 0: 30}, {4: 4, 2: 76}, {0: 80}],
    ids=str,
)
def test_digits(transposed, counts, turns, monkeypatch):
    if turns > 1:  # small tiles, so that there is more than one
        monkeypatch.setattr(vector_chain, "_LARGE_PROGRAMS", 1)
        monkeypatch.setattr(vector_chain, "_TILE", 16 * 128)
    bits = torch.tensor([b for b, n in counts.items() for _ in range(n)])
    layout = PlaneLayout(bits)
    dense, tiled = both(vectors(150, 80, torch.bfloat16), 32)
    norm = dense.token_norms("l2").half()
    dense, tiled = (CHAINS["rd"](pages, norm) for pages in (dense, tiled))
    scale, zero_point = dense.fit_levels(bits, dense.groups(None))
    scale, zero_point = scale[..., : layout.coded].half(), zero_point.half()
    dim = -1 if transposed else -2
    for padded_widths in (None, layout.padded_widths(torch.device("cuda"), None, dim)):
        expected = dense.plane_codes(scale, zero_point, layout, transposed, padded_widths)
        found = tiled.plane_codes(scale, zero_point, layout, transposed, padded_widths)
        assert found.keys() == expected.keys() == layout.widths.keys()
        for name in expected:
            same_codes(found[name], expected[name])
            width = found[name].shape[-3 - dim]
            assert width == (layout.widths[name] if padded_widths is None else -(-layout.widths[name] // 16) * 16)
            assert not found[name].narrow(-3 - dim, layout.widths[name], width - layout.widths[name]).any()


def book(planes: tuple[int, int, int], first: int, split: bool) -> ScalarBook:
    """Of 80 channels, the first of more bits than the others, in unlike steps."""
    low, high, _ = planes
    runs = ((first, low + high), (80 - first, low))
    borders = {
        bits: tuple((torch.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1)) * 0.4 / 2**bits).tolist())
        for bits in (1, 2, 3, 4)
    }
    return ScalarBook(tuple((n, borders[bits]) for n, bits in runs if n), *planes, split)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("planes", "first", "split"),
    [
        ((2, 0, 0), 0, False),
        ((2, 1, 80), 80, False),
        ((2, 2, 30), 30, False),
        ((2, 1, 20), 20, True),
        ((1, 0, 0), 0, False),
    ],
)
def test_book_codes(planes, first, split, transposed, monkeypatch):
    """Several tiles and turns a page and program; a zero vector, or an offset larger than what varies."""
    monkeypatch.setattr(vector_chain, "_LARGE_PROGRAMS", 1)
    monkeypatch.setattr(vector_chain, "_TILE", 16 * 128)
    x, offset = vectors(150, 80, torch.bfloat16), 40.0 if planes[1] else 0.0
    if not offset:
        x[:, :, 5] = 0
    found, expected = (
        pages.subtract(torch.full((2, 2, 80), offset, device=DEVICE))
        .transform(matrix(pages)[None])
        .book_codes(book(planes, first, split), torch.float16, transposed)
        for pages in reversed(both(x + offset, 32))
    )
    assert len(found[2]) == len(expected[2]) == 1 + split
    for a, b in zip((*found[2], *found[:2]), (*expected[2], *expected[:2]), strict=True):
        if a is None or a.dtype == torch.uint8:
            assert (a is None) == (b is None)
            if a is not None:
                same_codes(a, b)
        else:
            close(a, b, 1e-3)


def test_room_of_digits_does_not_change_what_is_read():
    layout = PlaneLayout(torch.tensor([8, 6, 4, 4, 2, 2, 1, 1, 1, 0]))
    codes = (torch.rand(2, 2, 3, 32, layout.coded) * (layout.levels(torch.device("cpu"))[: layout.coded] + 1)).byte()
    for dim in (-2, -1):
        exact = layout.unpack(layout.pack(codes, dim), dim)
        padded = layout.pack(codes, dim, layout.padded_widths(torch.device("cuda"), None, dim))
        assert {name: tensor.shape[-3 - dim] for name, tensor in padded.items()} == {"codes": 16, "codes_1bit": 16}
        assert torch.equal(layout.unpack(padded, dim), exact)
        assert torch.equal(exact if dim == -2 else exact.transpose(-1, -2), codes.float())
