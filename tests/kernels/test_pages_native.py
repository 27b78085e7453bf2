"""Pages whose statistics and codes are made in C against float32 pages in torch."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kvmm.kernels.quantize import DensePages, ScalarBook, cut_pages, fit_levels
from kvmm.kernels.quantize import dense as dense_pages
from kvmm.kernels.quantize import native as native_pages
from kvmm.kernels.quantize.layout import PlaneLayout
from kvmm.kernels.quantize.native import NativePages, compiled

pytestmark = pytest.mark.skipif(not compiled(), reason="no C compiler")

BITS = [8, 6, 4, 2, 2, 1, 1, 0]
CASES = [(1, 64), (150, 64), (333, 80), (129, 72), (1000, 96), (70, 128), (40, 256)]


def vectors(tokens: int, dim: int, seed: int = 0) -> torch.Tensor:
    """bfloat16 ``[2, 3, tokens, dim]`` with the strides of a projection, and channels of unlike means and widths."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, tokens, 3, dim, generator=generator) * (0.2 + torch.rand(dim, generator=generator) * 3)
    return (x + 4 * torch.randn(3, dim, generator=generator)).bfloat16().transpose(1, 2)


def both(x: torch.Tensor, page_size: int, holes: bool = False) -> tuple[DensePages, NativePages]:
    valid = None
    if holes:
        valid = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool)
        valid[1, -(-x.shape[2] // 2) :] = False
    return DensePages.cut(x, page_size, valid), NativePages.cut(x, page_size, valid)


def bits_of(dim: int) -> torch.Tensor:
    return torch.tensor([BITS[8 * c // dim] for c in range(dim)])


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    scale = float(expected.float().abs().max()) + 1e-9
    assert float((found.float() - expected.float()).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("tokens", "dim"), CASES)
def test_statistics(tokens, dim, holes):
    """Slots without a token, and fill, do not count."""
    dense, native = both(vectors(tokens, dim), 32, holes)
    for found, expected in zip(native.moments(), dense.moments(), strict=True):
        close(found, expected, 1e-5)
    close(native.token_excess(1.0), dense.token_excess(1.0), 1e-4)
    assert bool((native.token_excess(1.0) > 0).any()) == (tokens > 1)
    keep = torch.rand(dense.shape[:4], generator=torch.Generator().manual_seed(1)) > 0.3
    for found, expected in zip(native._page_sums(keep), dense._page_sums(keep), strict=True):
        close(found, expected)
    close(native.page_means(keep), dense.page_means(keep))


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("group", [16, 64, None])
@pytest.mark.parametrize(("tokens", "dim"), CASES)
def test_levels(tokens, dim, group, holes):
    """Of groups within pages and across them; as near to the exact ones as torch's."""
    x = vectors(tokens, dim)
    x[..., 5] += 600
    dense, native = both(x, 32, holes)
    groups, bits = dense.groups(group), bits_of(dim)
    exact = DensePages(dense.values.double(), None if dense.weight is None else dense.weight.double())
    truth = exact.fit_levels(bits, groups, torch.float64)
    for dtype, coded in ((torch.float32, None), (torch.float16, dim - 7)):
        found = native.fit_levels(bits, groups, dtype, coded)
        for own, other in zip(found, dense.fit_levels(bits, groups, dtype, coded), strict=True):
            assert own.shape == other.shape and own.dtype == other.dtype == dtype and own.is_contiguous()
    # one code that falls on the other side of a border moves a group of 16 tokens a little
    for own, other, true in zip(native.fit_levels(bits, groups), dense.fit_levels(bits, groups), truth, strict=True):
        scale = float(true.abs().mean()) + 1e-9
        error, usual = (float((p - true).abs().mean()) / scale for p in (own, other))
        assert error <= max(1.5 * usual, 1e-5), (error, usual)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("page_size", [16, 32, 128])
@pytest.mark.parametrize(("tokens", "dim"), CASES)
def test_plane_codes(tokens, dim, page_size, transposed):
    """Bit by bit, with and without lanes that only fill up, and with parameters for all heads at once."""
    dense, native = both(vectors(tokens, dim), page_size)
    layout = PlaneLayout(bits_of(dim))
    scale, zero_point = dense.fit_levels(layout.bits, dense.groups(None), torch.float16, layout.coded)
    scale[..., 0] = 0.0
    padded = {name: width + 5 for name, width in layout.widths.items()}
    for levels in ((scale, zero_point), (scale[:1, :1], zero_point[:1, :1])):
        for widths in (None, padded):
            found = native.plane_codes(*levels, layout, transposed, widths)
            expected = dense.plane_codes(*levels, layout, transposed, widths)
            assert found.keys() == expected.keys() == {"codes", "codes_1bit"}
            for name, codes in expected.items():
                assert found[name].dtype == torch.uint8 and torch.equal(found[name], codes), name


BOOKS = [
    ScalarBook(((80, (-0.1, 0.0, 0.1)),), 2),
    ScalarBook(((80, (0.02,)),), 1),
    ScalarBook(((24, (-0.2, -0.15, -0.1, 0.0, 0.05, 0.1, 0.2)), (56, (-0.1, 0.0, 0.1))), 2, 1, 24),
    ScalarBook(((33, tuple(n / 40 - 0.2 for n in range(15))), (47, (-0.1, 0.0, 0.1))), 2, 2, 33, True),
    ScalarBook(((80, tuple(n / 40 - 0.2 for n in range(15))),), 4),
    ScalarBook(((80, tuple(n / 400 - 0.2 for n in range(255))),), 8),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("book", BOOKS)
def test_book_codes(book, transposed):
    """Bit by bit; of vectors of zeros, too, and of more borders than are compared one by one."""
    x = vectors(150, 80)
    x[0, 1, 7] = 0
    for dtype in (torch.float16, torch.float32):
        expected, found = (pages.book_codes(book, dtype, transposed) for pages in both(x, 32))
        assert (found[1] is None) == (expected[1] is None) == (book.high_bits == 0)
        for own, other in zip((*found[2], *found[:2]), (*expected[2], *expected[:2]), strict=True):
            assert own is other is None or (own.dtype == other.dtype and torch.equal(own, other))
    assert len(torch.unique(found[0])) > 2


@pytest.mark.parametrize("bits", [[2] * 64, [1] * 64, [0] * 64, [8] * 8 + [0] * 56])
def test_layouts(bits):
    dense, native = both(vectors(100, 64), 32)
    layout = PlaneLayout(torch.tensor(bits))
    levels = dense.fit_levels(layout.bits, dense.groups(None), torch.float32, layout.coded)
    found, expected = (pages.plane_codes(*levels, layout, True) for pages in (native, dense))
    assert found.keys() == expected.keys() == layout.widths.keys()
    assert all(torch.equal(found[name], codes) for name, codes in expected.items())


def test_a_long_span_is_sampled(monkeypatch):
    monkeypatch.setattr(dense_pages, "SAMPLED", 200)
    dense, native = both(vectors(700, 64), 32, holes=True)
    keep = torch.rand(dense.shape[:4], generator=torch.Generator().manual_seed(1)) > 0.3
    one, other = dense.sample(), native.sample()
    assert one.every == other.every == 3 and isinstance(other, NativePages)
    close(other.token_excess(1.0), one.token_excess(1.0), 1e-4)
    for found, expected in zip(other._page_sums(keep), one._page_sums(keep), strict=True):
        close(found, expected)
    bits = bits_of(64)
    for found, expected in zip(
        other.fit_levels(bits, other.groups(None)), one.fit_levels(bits, one.groups(None)), strict=True
    ):
        close(found, expected, 1e-3)


def test_numbers_that_are_none():
    """What is not a number, or infinite, has a code all the same, and other channels keep theirs."""
    x = vectors(64, 64).float()
    layout = PlaneLayout(torch.full((64,), 2))
    dense, native = both(x, 32)
    levels = dense.fit_levels(layout.bits, dense.groups(None), torch.float32, layout.coded)
    usual = native.plane_codes(*levels, layout, True)["codes"]
    x[0, 0, 3, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found = both(x, 32)[1].plane_codes(*levels, layout, True)["codes"]
    assert torch.equal(found[0, 0, 0, 3:], usual[0, 0, 0, 3:]) and torch.equal(found[1:], usual[1:])
    # token 3 of 32 is the first plane of byte 3
    assert [int(code) & 3 for code in found[0, 0, 0, :3, 3]] == [0, 3, 0]


def test_chains_stay_native():
    _, native = both(vectors(100, 64), 32)
    norm = native.divisors(torch.float16)
    matrix = torch.eye(64).expand(1, 3, 64, 64)
    pages = native.divide(norm).transform(matrix).subtract(torch.zeros(1, 1, 64)).rotate()
    assert isinstance(pages, NativePages)


def test_without_a_compiler(monkeypatch):
    x = vectors(40, 64)
    assert isinstance(cut_pages(x, 32), NativePages)
    monkeypatch.setattr(native_pages, "library", lambda: None)
    assert type(cut_pages(x, 32)) is DensePages


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(default):
    dense, native = both(vectors(100, 64), 32)
    bits = torch.tensor([2] * 40 + [1] * (20 if default == torch.float64 else 19))  # that nothing has been kept of
    groups, bits = dense.groups(None), torch.cat((bits, bits.new_zeros(64 - len(bits))))
    usual = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = native.fit_levels(bits, groups), dense.fit_levels(bits, groups)
    finally:
        torch.set_default_dtype(usual)
    exact = DensePages(dense.values.double(), dense.weight.double()).fit_levels(bits, groups, torch.float64)
    for levels in found:
        for own, expected in zip(levels, exact, strict=True):
            close(own, expected.float(), 1e-4)


def test_steps_that_were_first_asked_for_in_inference_mode_can_be_differentiated():
    bits = torch.tensor([2] * 30 + [1] * 34)  # that nothing has been kept of
    x = torch.randn(50, 64)
    with torch.inference_mode():
        fit_levels(x, None, bits)
    x = x.requires_grad_()
    fit_levels(x, None, bits)[0].sum().backward()
    assert bool((x.grad != 0).any()) and bool(x.grad.isfinite().all())


def test_what_c_cannot_read_is_left_to_torch():
    """Other dtypes, as autocasting makes them, tensors without memory, and those that are differentiated."""
    x = vectors(70, 64)
    matrix = torch.eye(64).expand(1, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        pages = cut_pages(x, 32).transform(matrix)
    assert type(pages) is DensePages and pages.values.dtype == torch.bfloat16
    assert all(found.isfinite().all() for found in pages.moments())
    assert type(NativePages.cut(x, 32)._with(torch.zeros(2, 3, 3, 32, 64, dtype=torch.float64))) is DensePages
    with FakeTensorMode():
        fake = cut_pages(torch.zeros(1, 1, 40, 64), 32)
        assert type(fake) is DensePages and fake.moments()[0].shape == (1, 1, 64)
    pages = cut_pages(x.float().requires_grad_(), 32)
    assert type(pages) is DensePages and pages.moments()[1].requires_grad


def test_what_broadcasts_does():
    dense, native = both(vectors(70, 64), 32)
    keep = torch.rand(1, 1, 3, 32) > 0.3
    for found, expected in zip(native._page_sums(keep), dense._page_sums(keep.expand(2, 3, 3, 32)), strict=True):
        close(found, expected)
    close(native._page_sums(keep.float())[0], dense._page_sums(keep.expand(2, 3, 3, 32))[0])


def test_other_shapes_are_refused():
    """Before C would read what is not there."""
    native, keep = both(vectors(70, 64), 32)[1], torch.ones(1, 1, 2, 32)
    with pytest.raises(RuntimeError):
        native.fit_levels(torch.full((32,), 2), native.groups(None))
    with pytest.raises(RuntimeError):
        native._page_sums(keep)
    three = NativePages(native.values, torch.ones(3, 1, 3, 32, 1))
    for statistics in (three.moments, lambda: three.fit_levels(bits_of(64), three.groups(None))):
        with pytest.raises(RuntimeError):
            statistics()
