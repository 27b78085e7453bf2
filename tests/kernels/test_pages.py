"""Pages read tile by tile in Triton against float32 pages in torch: under the interpreter, on a GPU natively."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvmm.cache.pages import PageStore
from kvmm.calibration import Calibration, site_name
from kvmm.codecs import EncodeContext, Site, build_codec
from kvmm.kernels.hadamard import reference
from kvmm.kernels.hadamard import triton as rotation
from kvmm.kernels.hadamard.triton import launch
from kvmm.kernels.quantize import DensePages, triton_statistics
from kvmm.kernels.quantize import chain as vector_chain
from kvmm.kernels.quantize import triton as kernels
from kvmm.kernels.quantize.layout import PlaneLayout
from kvmm.kernels.quantize.tiles import TilePages
from kvmm.modality import IMAGE
from kvmm.policy import CodecSpec, spec

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
}


def matrix(pages) -> torch.Tensor:
    """float32 ``[H, D, D]`` that fp16 holds, as every stored transform is."""
    generator = torch.Generator().manual_seed(5)
    heads, dim = pages.shape[1], pages.shape[-1]
    return (torch.randn(heads, dim, dim, generator=generator) / dim**0.5).half().float().to(DEVICE)


def replaced(pages):
    generator = torch.Generator().manual_seed(6)
    keep = (torch.rand(pages.shape[:4], generator=generator) > 0.1).to(DEVICE)
    total, count = pages.page_sums(keep)
    return pages.replace(keep, total / count)


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


def test_room_of_digits_does_not_change_what_is_read():
    layout = PlaneLayout(torch.tensor([8, 6, 4, 4, 2, 2, 1, 1, 1, 0]))
    codes = (torch.rand(2, 2, 3, 32, layout.coded) * (layout.levels(torch.device("cpu"))[: layout.coded] + 1)).byte()
    for dim in (-2, -1):
        exact = layout.unpack(layout.pack(codes, dim), dim)
        padded = layout.pack(codes, dim, layout.padded_widths(torch.device("cuda"), None, dim))
        assert {name: tensor.shape[-3 - dim] for name, tensor in padded.items()} == {"codes": 16, "codes_1bit": 16}
        assert torch.equal(layout.unpack(padded, dim), exact)
        assert torch.equal(exact if dim == -2 else exact.transpose(-1, -2), codes.float())


# -- whole codecs ---------------------------------------------------------------------------------------------------

SPECS = [
    spec("kivi", 2, 32),
    spec("kivi", 4, 256),
    spec("oscar", 2, 128),
    spec("oscar", 2, 32, norm_scope="token", norm="max", zero_point="integer"),
    spec("calibquant", 1, None, levels="mean"),
    spec("calibquant", 1, None, levels="code"),
    spec("kitty", 2, 128),
    spec("kitty", 2, 32, boost=0.25, score="range"),
    spec("quarot", 2, 32),
    spec("rotatekv", 2, 64),
    spec("rotatekv", 2, 64, pivots=3),
    spec("ott", 2, 64),
    spec("ott", 4, None, window=64, pool=2),
    spec("turboquant", 2, None),
    CodecSpec("rd", 2),
    CodecSpec("rd", 1.5, None, (("norm", "l2"),)),
    CodecSpec("rd", 2.25, None, (("fit", "prompt"),)),
    spec("rd", 2, outliers=2),
    spec("rd", 1.5, norm="l2", outliers=3),
    spec("rd", 2, fit="prompt", outliers=1),
]


def calibration(heads: int, dim: int) -> Calibration:
    generator = torch.Generator().manual_seed(9)
    tensors = {}
    for side in ("key", "value"):
        found = {
            "transform": torch.linalg.qr(torch.randn(heads, dim, dim, generator=generator)).Q.half(),
            "mean": torch.randn(heads, dim, generator=generator),
            "variance": torch.logspace(1, -2, dim).expand(heads, dim).contiguous(),
            "norm": torch.ones(1, dtype=torch.uint8),
        }
        tensors |= {site_name("rd", 0, side, IMAGE) + name: tensor for name, tensor in found.items()}
    return Calibration("made up", tensors, {"importance": "gradient"})


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("kv", [*SPECS, "calibrated", "calibrated, outliers"], ids=str)
def test_codecs(kv, side, monkeypatch):
    """An encode, and a second one behind it, through tiles and through float32 pages: alike, and decoded alike."""
    site = Site()
    if isinstance(kv, str):
        kv, site = spec("rd", 2, outliers=2 * ("outliers" in kv)), Site(0, IMAGE, calibration(2, 64))
    x, valid = holes(vectors(300, 64, torch.bfloat16), 200)
    later = vectors(130, 64, torch.bfloat16, seed=1)
    keys = vectors(300, 64, torch.bfloat16, seed=2)
    moment = torch.eye(64, device=DEVICE).expand(2, 2, 64, 64)
    stores = []
    for cut in (DensePages.cut, TilePages):
        for module in ("affine", "oscar", "kitty", "quarot", "rotatekv", "ott", "rd.codec"):
            monkeypatch.setattr(f"kvmm.codecs.{module}.cut_pages", cut, raising=False)
        store = PageStore(build_codec(kv, side, site), 64)
        store.append(x, valid, moment, keys if side == "value" else None)
        store.append(later)
        stores.append(store)
    dense, tiled = stores
    assert tiled.packed.tensors.keys() == dense.packed.tensors.keys()
    fitted = "transform" in dense.packed.tensors  # eigenvectors: alike only as far as what they decode to
    for name, expected in dense.packed.tensors.items():
        found = tiled.packed[name]
        assert found.dtype == expected.dtype, name
        if fitted:
            continue
        assert found.shape == expected.shape, name
        if "codes" in name:
            assert float((found != expected).float().mean()) < 5 * TIES, name  # of bytes
        else:
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3, msg=name)
    if dense.page_group is not None:
        assert torch.equal(tiled.page_group, dense.page_group)
    exact = torch.cat([paged.float() for paged in (x, later)], 2)
    errors = []
    for store in stores:
        decoded = store.decode()
        decoded = torch.cat((decoded[:, :, :300], decoded[:, :, 320 : 320 + 130]), 2)
        errors.append(float((decoded - exact).square().mean()))
    assert errors[1] == pytest.approx(errors[0], rel=2e-2 if fitted else 5e-3)


def test_dispatch():
    """A codec gets tiles on a GPU and float32 pages elsewhere."""
    from kvmm.kernels.quantize import cut_pages

    pages = cut_pages(vectors(40, 64), 32)
    assert isinstance(pages, TilePages if DEVICE.type == "cuda" else DensePages)
    packed = build_codec(spec("rd", 2), "key").encode(vectors(200, 64), EncodeContext(128))
    assert (packed["codes"].shape[-1] % 32 == 0) or DEVICE.type == "cpu"


class Silent:
    """In place of a kernel; counts launches."""

    launches: ClassVar[Counter] = Counter()

    def __init__(self, name: str):
        self.name = name

    def __getitem__(self, grid):
        return lambda *args, **constants: self.launches.update([self.name])


class Recorder(TorchDispatchMode):
    """Names of the operations on tensors, views left out."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("side", ["key", "value"])
def test_calibrated_pages_cost_the_host_little(side, monkeypatch):
    """Once a site is known, packing it launches kernels and asks for memory: nothing is computed in small steps on the
    way, copied to the device or read from it."""
    fitted = calibration(2, 64)
    monkeypatch.setattr("kvmm.codecs.rd.codec.cut_pages", TilePages)
    for module in (kernels, triton_statistics, rotation):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Silent(name))
    x = vectors(516, 64, torch.bfloat16)[:, :, 4:]
    for known in (False, True):
        store = PageStore(build_codec(CodecSpec("rd", 2), side, Site(0, IMAGE, fitted)), 128)
        Silent.launches.clear()
        with Recorder() as recorder:
            if known and DEVICE.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                store.append(x)
            finally:
                if DEVICE.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
    assert set(recorder.names) <= {"empty", "new_empty", "zeros", "full", "fill_", "zero_"}, recorder.names
    assert recorder.names.total() <= 16
    assert Silent.launches.total() == 8, Silent.launches
