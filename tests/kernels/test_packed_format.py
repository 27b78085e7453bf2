"""The packed format: one declaration, which C compilers lay out as ctypes does, and which every store is held to."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import fields, replace

import pytest
import torch

from kvmm.cache.pages import PageStore
from kvmm.calibration.file import _read
from kvmm.codecs import Site, build_codec
from kvmm.kernels.attention.backends.cpu import structs as cpu
from kvmm.kernels.attention.backends.cuda import arguments as cuda
from kvmm.kernels.attention.backends.cuda.variant import Variant
from kvmm.kernels.attention.format import TENSORS, DenseFormat, PackedFormat, axis_sizes, mismatch, tensors_of
from kvmm.kernels.attention.structs import INT, INT64, Member, Struct
from kvmm.modality import IMAGE
from kvmm.policy import spec
from tests.cache.harness import matrix_specs
from tests.kernels.test_attention_triton import ROOT

BATCH, HEADS, DIM = 3, 2, 64
VARIANT = Variant(128, 1, (128, 0), (2, 0), (128, 0), (2, 0))
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def offsets_in_c(header, structs, folder, suffix="c"):
    """Offsets of all members, by structure, as gcc lays a header's structures out in a language."""
    names = [(struct.name, member.name) for struct in structs for member in struct.members]
    prints = "\n".join(f'printf("{s} {m} %zu\\n", offsetof({s}, {m}));' for s, m in names)
    prints += "\n".join(f'printf("{s.name} sizeof %zu\\n", sizeof({s.name}));' for s in structs)
    source, program = folder / f"offsets.{suffix}", folder / "offsets"
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n{header}\nint main(void) {{ {prints} }}\n")
    subprocess.run(["g++" if suffix == "cpp" else "gcc", "-o", program, source], check=True)
    lines = subprocess.run([folder / "offsets"], check=True, capture_output=True, text=True).stdout.split("\n")
    return {(s, m): int(at) for s, m, at in (line.split() for line in lines if line)}


def offsets_in_python(structs):
    found = {(s.name, member): at for s in structs for member, at in s.offsets().items()}
    return found | {(s.name, "sizeof"): ctypes.sizeof(s.ctype) for s in structs}


@needs_gcc
def test_the_cpu_header_is_laid_out_as_ctypes_has_it(tmp_path):
    structs = [cpu.ARRAY, cpu.PLANE, cpu.FORMAT, cpu.SEGMENT, cpu.CALL]
    assert offsets_in_c(cpu.header_text(), structs, tmp_path) == offsets_in_python(structs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cuda_header_is_laid_out_as_ctypes_has_it(tmp_path):
    structs = [cuda.PAGED, cuda.ARGUMENTS]
    assert offsets_in_c(cuda.header_text(VARIANT), structs, tmp_path, "cpp") == offsets_in_python(structs)


def test_every_field_of_a_variant_is_a_macro():
    text = cuda.header_text(replace(VARIANT, key_lanes=(96, 32), warps=6))
    defined = dict(re.findall(r"#define (\w+) (\d+) //", text))
    assert (defined["KEY_LANES_0"], defined["KEY_LANES_1"], defined["WARPS"]) == ("96", "32", "6")
    names = {f"{entry.name.upper()}{pair}" for entry in fields(Variant) for pair in ("", "_0", "_1")}
    assert set(defined) - names == {"WARP_BYTES"}
    assert all(any(f"{entry.name.upper()}{pair}" in defined for pair in ("", "_0")) for entry in fields(Variant))


@needs_gcc
@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_compiler_that_lays_out_otherwise_refuses(tmp_path, language):
    struct = Struct("two_t", (Member("small", INT), Member("large", INT64, count=2)))
    other = Struct("two_t", (Member("small", INT64), Member("large", INT64, count=2)))
    right, wrong = (x.text(cuda=language == "c++") for x in (struct, other))
    wrong = wrong.replace("int64_t small", "int small").replace("int64_t large[2]", "int large[2]")
    compiled = []
    for text in (right, wrong):
        (tmp_path / "x.c").write_text(f"#include <stddef.h>\n#include <stdint.h>\n{text}")
        command = ["gcc", "-x", language, "-fsyntax-only", tmp_path / "x.c"]
        compiled.append(subprocess.run(command, capture_output=True, text=True))
    assert compiled[0].returncode == 0
    assert compiled[1].returncode and ("two_t.large" if language == "c" else "two_t") in compiled[1].stderr


def test_every_tensor_of_the_format_is_declared():
    tensors = {entry.name for entry in fields(PackedFormat) if "Tensor" in entry.type}
    assert tensors == set(TENSORS)
    assert {name for name, declared in TENSORS.items() if declared.cpu} <= {m.name for m in cpu.FORMAT.members}


def store_of(kv, side, site=None, more=40):
    codec = build_codec(kv, side, site or Site())
    store = PageStore.for_codec(codec, 64)
    for count in (170, more):
        if count:
            store.append(torch.randn(BATCH, HEADS, count, DIM, generator=torch.Generator().manual_seed(count)))
    return codec.packed_format(store.packed)


def calibrated(side):
    calibration = _read(ROOT / "assets/tiny-omni/kvmm_calibration.safetensors", 0)
    kv = spec("rd", 3)
    return store_of(kv, side, Site(3, IMAGE, calibration, kv))


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("kv", matrix_specs(), ids=str)
def test_what_codecs_make_is_as_declared(kv, side):
    store = store_of(kv, side)
    if store is None:
        pytest.skip("read by scores and weighted_values")
    key = side == "key"
    assert mismatch(store, key, BATCH, HEADS, DIM) is None
    assert mismatch(store, key, BATCH, HEADS, DIM + 8) is not None
    assert mismatch(store, key, BATCH, HEADS + 1, DIM) is not None
    if isinstance(store, PackedFormat) and not store.by_token:
        sizes = axis_sizes(store, key)
        assert sizes["D"] == DIM and sizes["G"] == store.scale.shape[2] and sizes["L"] == store.lanes


STORES = {
    "rd keys": lambda: calibrated("key"),
    "rd values": lambda: calibrated("value"),
    "kitty keys": lambda: store_of(spec("kitty", 2, 64, boost=0.25), "key"),
    "quarot keys": lambda: store_of(spec("quarot", 2, 32), "key"),
    "oscar values": lambda: store_of(spec("oscar", 2, 64), "value"),
    "calibquant keys": lambda: store_of(spec("calibquant", 2, None, calibration=(1, 2)), "key"),
}


@pytest.mark.parametrize("name", STORES)
def test_a_field_that_is_not_as_declared_is_named(name):
    """Every field: one element fewer along each axis, another dtype, an index out of range."""
    store, key = STORES[name](), "keys" in name
    assert mismatch(store, key, BATCH, HEADS, DIM) is None
    for field, declared, x in list(tensors_of(store)):
        for axis in range(x.dim()):
            letter = declared.axes_of(store, key)[axis]
            if x.shape[axis] == 1 or (letter in "BH" and x.shape[axis] == 2):  # one is for all
                continue
            short = replace(store, **{field: x.narrow(axis, 0, x.shape[axis] - 1)})
            several = [n for n, other, _ in tensors_of(store) if letter in other.axes_of(store, key)]
            if letter in "BHPNLDV" or len(several) > 1:
                assert mismatch(short, key, BATCH, HEADS, DIM) is not None, (field, letter)
        other = x.double() if x.is_floating_point() else x.long()
        assert mismatch(replace(store, **{field: other}), key, BATCH, HEADS, DIM) == field
        if declared.low is not None:
            for wrong in (declared.low - 1, 255):
                if x.dtype != torch.uint8 or wrong >= 0:
                    bad = replace(store, **{field: torch.full_like(x, wrong)})
                    assert mismatch(bad, key, BATCH, HEADS, DIM) == field
    codes = store.planes[0].codes
    for bad in (codes[:, :, 1:], codes[:, :, :, 1:], codes[..., 1:], codes.int()):
        plane = replace(store.planes[0], codes=bad)
        assert mismatch(replace(store, planes=(plane, *store.planes[1:])), key, BATCH, HEADS, DIM) == "planes"


def test_dense_pages_are_as_declared():
    values = torch.zeros(BATCH, HEADS, 3, 64, DIM)
    assert mismatch(DenseFormat(values, 64), True, BATCH, HEADS, DIM) is None
    assert mismatch(DenseFormat(values.double(), 64), True, BATCH, HEADS, DIM) == "values"
    assert mismatch(DenseFormat(values[:, :, :, 1:], 64), True, BATCH, HEADS, DIM) == "values"
