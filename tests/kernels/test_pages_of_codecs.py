"""Codecs that read pages tile by tile in Triton against float32 pages: under the interpreter, on a GPU natively."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvmm.cache.pages import PageStore
from kvmm.calibration import Calibration, site_name
from kvmm.codecs import EncodeContext, Site, build_codec
from kvmm.kernels.hadamard import triton as rotation
from kvmm.kernels.quantize import DensePages, triton_statistics
from kvmm.kernels.quantize import triton as kernels
from kvmm.kernels.quantize.native import NativePages, compiled
from kvmm.kernels.quantize.tiles import TilePages
from kvmm.modality import IMAGE
from kvmm.policy import CodecSpec, spec
from tests.kernels.test_pages import DEVICE, TIES, holes, vectors

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
    *(spec("turboquant", bits, None) for bits in (2, 2.5, 4)),
    spec("turboquant", 2.25, None, outliers="magnitude"),
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
    """An encode, and a second one behind it, through tiles, through float32 pages and through those of the C library:
    alike, and decoded alike."""
    site = Site()
    if isinstance(kv, str):
        kv, site = spec("rd", 2, outliers=2 * ("outliers" in kv)), Site(0, IMAGE, calibration(2, 64))
    x, valid = holes(vectors(170, 64, torch.bfloat16), 100)
    later = vectors(70, 64, torch.bfloat16, seed=1)
    keys = vectors(170, 64, torch.bfloat16, seed=2)
    moment = torch.eye(64, device=DEVICE).expand(2, 2, 64, 64)
    stores = []
    for cut in (DensePages.cut, TilePages, *([NativePages.cut] if DEVICE.type == "cpu" and compiled() else [])):
        for module in ("affine", "oscar", "kitty", "quarot", "rotatekv", "ott", "rd.codec", "rd.clipped", "turboquant"):
            monkeypatch.setattr(f"kvmm.codecs.{module}.cut_pages", cut, raising=False)
        store = PageStore(build_codec(kv, side, site), 64)
        store.append(x, valid, moment, keys if side == "value" else None)
        store.append(later)
        stores.append(store)
    for other in stores[1:]:
        _check_alike(other, stores[0], x, later)


def _check_alike(tiled: PageStore, dense: PageStore, x: torch.Tensor, later: torch.Tensor) -> None:
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
    for store in (dense, tiled):
        decoded = store.decode()
        decoded = torch.cat((decoded[:, :, :170], decoded[:, :, 192 : 192 + 70]), 2)  # three pages, and two
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
