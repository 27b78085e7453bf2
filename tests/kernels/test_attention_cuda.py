"""A whole call with the CUDA split kernel, which runs on the CPU here: what the driver hands from kernel to kernel."""

import ctypes
import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.calibration.file import _read
from kvmm.codecs import Site
from kvmm.kernels.attention.backends.cuda import angle_kernel
from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import pages as cuda_pages
from kvmm.kernels.attention.backends.cuda import splits as cuda_splits
from kvmm.kernels.attention.backends.cuda.arguments import arguments_of
from kvmm.kernels.attention.backends.cuda.variant import Variant
from kvmm.kernels.attention.backends.triton import call as triton_call
from kvmm.kernels.attention.backends.triton import pages as triton_pages
from kvmm.kernels.quantize import layout as plane_layouts
from kvmm.modality import IMAGE
from kvmm.policy import spec
from tests.kernels.cuda_cases import library_of
from tests.kernels.test_attention_triton import ROOT, compare, make_parts

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() or not triton_pages.interpreted(),
    reason="runs natively on a GPU, where other tests have it",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("digits")


@pytest.fixture
def variants(monkeypatch, folder, num_residual_splits):
    """The CUDA kernel on the CPU; the variants that were launched."""
    launched: list[Variant] = []

    def split_kernel(
        query, qw, qz, keys, values, m, l, acc, used, bias, zero=None, *,
        residual=None, residual_out=None, calibration=None, variant, launch_pdl,
    ):  # fmt: skip
        written = () if residual_out is None else (residual_out.m, residual_out.l, residual_out.acc)
        for x in (m, l, acc, zero, *written):  # what is not written shows
            if x is not None:
                x.fill_(float("nan"))
        launched.append(variant)
        path = folder / f"{abs(hash(variant))}.so"
        library = ctypes.CDLL(str(path)) if path.exists() else library_of(variant, path)
        arguments = arguments_of(
            query, qw, qz, keys, values, m, l, acc, used, bias, zero, residual, residual_out, calibration
        )
        grid = cuda_splits.grid_of(query, keys, variant, m.shape[1], residual_out)
        library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)

    def padded_widths(layout, device, previous, dim):  # as on a GPU
        return {name: -(-width // 16) * 16 for name, width in layout.widths.items()}

    monkeypatch.setattr(plane_layouts.PlaneLayout, "padded_widths", padded_widths)
    monkeypatch.setattr(cuda, "available", lambda device: True)
    monkeypatch.setattr(cuda, "_fitted", lambda variant, device, units: replace(variant, warps=2, stages=1))
    monkeypatch.setattr(cuda_splits, "num_splits", lambda *arguments, **more: 2)
    monkeypatch.setattr(cuda_splits, "num_residual_splits", lambda *arguments, **more: num_residual_splits[0])
    monkeypatch.setattr(cuda, "split_kernel", split_kernel)
    return launched


@pytest.fixture
def num_residual_splits() -> list[tuple[int, bool]]:
    """What ``num_residual_splits`` says; tests may change it."""
    return [(2, False)]


# codec, other arguments of the parts, whether the split kernel folds the scales of keys into the query
CASES = {
    "oscar": (spec("oscar", 2, 128), {"page_size": 128}, True),
    "oscar, later tokens": (spec("oscar", 2, 128), {"page_size": 64, "more": 90}, True),
    "one span": (spec("calibquant", 1, None, levels="mean"), {"page_size": 128}, True),
    "two spans": (spec("calibquant", 2, None), {"page_size": 64, "more": 150}, True),
    "channels by group": (spec("kitty", 2, 128, boost=0.25), {"page_size": 128}, True),
    "channels by long groups": (spec("kitty", 2, 128, boost=0.25), {"page_size": 64}, True),
    "rd": (spec("rd", 2, fit="none", rotation="hadamard"), {"page_size": 128}, True),
    "keys by token": (spec("quarot", 2, 64), {"page_size": 64, "more": 150}, True),
    "keys of two heads": (spec("rotatekv", 2, 64), {"page_size": 64, "more": 150}, True),
    "keys of two heads, kept tokens": (spec("rotatekv", 2, 64, pivots=9), {"page_size": 64, "more": 150}, True),
    "code book": (spec("turboquant", 2), {"page_size": 64, "more": 150}, True),
    "code books of 8 levels": (spec("turboquant", 3), {"page_size": 128}, True),
    "chosen channels": (spec("turboquant", 2.25, outliers="magnitude"), {"page_size": 128, "more": 150}, True),
    "half of the channels chosen": (
        spec("turboquant", 2.5, outliers="magnitude", offset="none"),
        {"page_size": 128},
        True,
    ),
    "kept tokens": (spec("ott", 2, 128), {"page_size": 128, "more": 150}, True),
    "rd, kept tokens": (spec("rd", 2, outliers=9, norm="l2"), {"page_size": 64, "more": 150}, False),
    "groups in a page": (spec("kivi", 2, 32), {"page_size": 128}, True),
    "groups in a page, norms": (spec("oscar", 4, 32), {"page_size": 64, "more": 90}, True),
    "groups in a page, 80 channels": (spec("kivi", 2, 32), {"page_size": 128, "dim": 80}, True),
    "groups of pages, 80 channels": (spec("oscar", 2, 128), {"page_size": 64, "more": 90, "dim": 80}, True),
    "rd, 256 channels": (spec("rd", 4, fit="none", rotation="hadamard"), {"page_size": 128, "dim": 256}, True),
}


# also with one sequence of four rows: every case takes a compiler seconds
FIRST = ("oscar", "oscar, later tokens", "one span", "two spans", "channels by group", "rd")


@pytest.mark.parametrize(
    ("name", "ratio", "batch"), [*((name, 7, 2) for name in CASES), *((name, 4, 1) for name in FIRST)]
)
def test_attend(variants: list[Variant], name: str, ratio: int, batch: int) -> None:
    kv, parts, folds = CASES[name]
    given = make_parts([(kv, kv)], [260], batch=batch, **parts)
    assert compare(given, ratio=ratio, batch=batch, holes=0.1, dim=parts.get("dim", 64)) < 2e-3
    assert [variant.query_type != 0 for variant in variants] == [folds]


@pytest.mark.parametrize(
    ("layer", "bits", "tokens", "more", "folds"),
    [
        (3, 1, 300, 0, True),  # levels of the span
        (3, 2, 100, 0, True),  # of the file
        (3, 3, 100, 300, False),  # of both
        (7, 1, 300, 0, True),  # channels of values with up to four digits of one plane
    ],
)
def test_calibrated(variants: list[Variant], layer: int, bits: int, tokens: int, more: int, folds: bool) -> None:
    calibration = _read(ROOT / "assets/tiny-omni/kvmm_calibration.safetensors", 0)
    kv = spec("rd", bits)
    parts = make_parts([(kv, kv)], [tokens], more=more, site=Site(layer, IMAGE, calibration, kv))
    assert compare(parts) < 2e-3
    assert [variant.query_type != 0 for variant in variants] == [folds]


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float16, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("name", [*FIRST, "groups in a page", "kept tokens", "rd, kept tokens", "chosen channels"])
def test_residual_tokens(variants, num_residual_splits, name: str, dtype: torch.dtype, apart: bool) -> None:
    """Columns in the model's dtype are read by the same kernel, between the query's transform and the pages."""
    kv, parts, _ = CASES[name]
    num_residual_splits[0] = (1, True) if apart else (2, False)
    given = make_parts([(kv, kv)], [260], batch=2, dtype=dtype, **parts)
    error = compare(given, ratio=5, batch=2, residual=45, dtype=dtype, holes=0.1)
    assert error < (2e-3 if dtype == torch.float16 else 6e-3)  # the output is rounded to it
    assert [variant.residual for variant in variants] == [1 if dtype == torch.float16 else 3]
    assert [variant.residual_kept for variant in variants] == ["kept" in name]


def test_kept_tokens_of_several_parts(variants) -> None:
    """The first part's are read behind the residual tokens, the others' alone."""
    kv, parts, _ = CASES["kept tokens"]
    given = make_parts([(kv, kv)] * 2, [260, 130], batch=2, dtype=torch.float16, **parts)
    assert compare(given, ratio=5, batch=2, residual=45, dtype=torch.float16, holes=0.1) < 2e-3
    assert [(variant.residual, variant.residual_kept) for variant in variants] == [(1, True)] * 2


def test_parts_whose_channels_differ(variants) -> None:
    """What is merged of the first part lies in the model's order."""
    kv, parts, _ = CASES["chosen channels"]
    given = make_parts([(kv, kv)] * 2, [260, 130], batch=2, dtype=torch.float16, **parts)
    orders = [part.value.packed["channel_order"] for part in given]
    assert not torch.equal(*orders) and not torch.equal(*orders[0])  # those of two sequences
    assert compare(given, ratio=5, batch=2, residual=45, dtype=torch.float16, holes=0.1) < 2e-3
    assert [(variant.key_high_norm, variant.value_high_norm) for variant in variants] == [(True, True)] * 2


@pytest.mark.parametrize(("ratio", "batch", "holes"), [(4, 1, 0.0), (7, 2, 0.1)])
@pytest.mark.parametrize(
    ("bits", "levels", "more"),
    [(1, "mean", 0), (1, "paper", 0), (2, "paper", 150)],  # the last in two spans
)
def test_calibrated_logits(variants, bits: int, levels: str, more: int, ratio: int, batch: int, holes: float) -> None:
    """One pass finds the range of the logits, the next calibrates them and reads the residual tokens."""
    kv = spec("calibquant", bits, None, levels=levels, calibration=(0.5, 2))
    page = 64 if more else 128
    parts = make_parts([(kv, kv)], [260], batch=batch, page_size=page, more=more, dtype=torch.float16)
    assert compare(parts, ratio=ratio, batch=batch, residual=45, dtype=torch.float16, holes=holes) < 2e-3
    assert [(variant.logit_range, variant.calibrated, variant.residual) for variant in variants] == [
        (True, False, 0),
        (False, True, 1),
    ]


@pytest.mark.parametrize("name", ["oscar", "two spans", "rd", "chosen channels"])
def test_many_sequences(variants, monkeypatch, name: str) -> None:
    monkeypatch.setattr(triton_call, "FEW_ROWS", 0)
    kv, parts, _ = CASES[name]
    assert compare(make_parts([(kv, kv)], [260], batch=2, **parts), ratio=5, batch=2, holes=0.1) < 2e-3
    assert len(variants) == 1


@pytest.mark.parametrize("residual", [0, 3])
def test_few_residual_tokens(variants, residual: int) -> None:
    kv, parts, _ = CASES["oscar"]
    given = make_parts([(kv, kv)] * 2, [260, 130], dtype=torch.float16, **parts)
    assert compare(given, residual=residual, dtype=torch.float16) < 2e-3
    assert [variant.residual for variant in variants] == [1 if residual else 0, 0]  # the first part takes them


def test_columns_that_another_kernel_takes(variants, monkeypatch) -> None:
    kv, parts, _ = CASES["oscar"]
    given = make_parts([(kv, kv)], [260], dtype=torch.float16, **parts)
    monkeypatch.setattr(cuda_pages, "_RESIDUAL_IN_SPLIT_KERNEL", False)
    assert compare(given, dtype=torch.float16) < 2e-3
    assert [variant.residual for variant in variants] == [0]


@pytest.fixture
def angle_variants(monkeypatch, folder):
    """The CUDA kernel of angle codes on the CPU; the variants that were launched."""
    launched: list[angle_kernel.AngleVariant] = []

    def launch(variant, grid, arguments, device):
        launched.append(variant)
        path = folder / f"{abs(hash(variant))}.so"
        source = cuda._SOURCE.with_name(angle_kernel.SOURCE)
        library = ctypes.CDLL(str(path)) if path.exists() else library_of(variant, path, source, angle_kernel.ARGUMENTS)
        library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)

    monkeypatch.setattr(angle_kernel, "available", lambda device: True)
    monkeypatch.setattr(angle_kernel, "_fitted", lambda variant, device, units: replace(variant, warps=2, stages=2))
    monkeypatch.setattr(angle_kernel, "multiprocessors", lambda device: 4)
    monkeypatch.setattr(angle_kernel, "launch", launch)
    return launched


@pytest.mark.parametrize(
    ("key", "parts", "ratio", "batch", "holes"),
    [
        (spec("spherical", 0.875), {"page_size": 128}, 4, 1, 0.0),
        (spec("spherical", 0.75), {"page_size": 64, "more": 150}, 7, 2, 0.1),  # in two spans
        (spec("spherical", 0.34375), {"page_size": 128}, 16, 1, 0.1),
        (spec("spherical-angles", 4), {"page_size": 128, "more": 150}, 4, 1, 0.1),
    ],
)
def test_angle_codes(angle_variants, key, parts, ratio: int, batch: int, holes: float) -> None:
    """One kernel reads codes, exact values and residual tokens."""
    given = make_parts([(key, spec("bf16"))], [260], batch=batch, dtype=torch.float16, **parts)
    error = compare(given, ratio=ratio, batch=batch, residual=45, dtype=torch.float16, holes=holes)
    assert error < 2e-3
    assert [variant.residual_tokens for variant in angle_variants] == [True]


def test_angle_codes_of_rebuilt_keys_and_many_rows_are_read_otherwise(angle_variants) -> None:
    for options, ratio in (({"reconstruct": True}, 4), ({}, 17)):
        kv = spec("spherical", 0.875, **options), spec("bf16")
        assert compare(make_parts([kv], [260], dtype=torch.float16), ratio=ratio, dtype=torch.float16) < 2e-3
    assert not angle_variants
