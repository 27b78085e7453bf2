"""Which backend reads the pages of every preset on an NVIDIA GPU: decided by formats, without a GPU."""

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from benchmarks.decode_attention import pack
from kvmm import get_policy, policies
from kvmm.kernels.angle.format import AngleFormat
from kvmm.kernels.attention import gpu
from kvmm.kernels.attention.backends.cuda import angle_kernel
from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import pages as cuda_pages
from kvmm.kernels.attention.backends.cuda.inputs import ResidualInputs
from kvmm.kernels.attention.backends.triton import call as triton_call
from kvmm.kernels.attention.call import AttentionCall, PackedReader
from kvmm.kernels.attention.format import DenseFormat, PackedFormat
from kvmm.kernels.quantize import layout as plane_layouts
from kvmm.policy import KVSpec, spec

HEADS, DIM, TOKENS, ROWS = 4, 128, 384, 4
H200 = 227 * 1024, 228 * 1024  # shared memory of a block and of a multiprocessor
# bf16 pages are read by Triton
NOT_CUDA = {
    "bf16": "triton",
    **dict.fromkeys(("spherical-high", "spherical-mid", "spherical-low"), "cuda, angle codes"),
}
OTHER_DIMS = {
    80: ("rd2", "kivi2", "kivi4", "oscar2", "oscar2-g32", "ott2", "turboquant2", "turboquant2.5"),
    96: ("turboquant2", "turboquant2.5", "paper-turboquant2.5"),
    256: (
        "small",
        "rd1",
        "rd1.5",
        "rd2",
        "balanced",
        "rd2.25",
        "rd2.5",
        "rd3",
        "kivi2",
        "oscar2",
        "turboquant2",
        "turboquant2.5",
        "paper-turboquant2.5",
    ),
}
NOT_CUDA_OF_OTHER_DIMS = {  # docs/gpu.md names all of them
    (64, "kitty"): "triton",
    (80, "paper-rotatekv2"): "triton",
    (80, "paper-turboquant2.5"): "torch",
    (256, "quarot2"): "triton",
    (256, "rotatekv2"): "triton",
}
NOT_PLAIN = ("turboquant2", "turboquant2.5", "paper-turboquant2.5")  # values that only the CUDA kernel knows


class Segment:
    """Keys and values of a part, as attention gets them."""

    def __init__(self, part):
        self.key, self.value = (PackedReader(store.codec, store.packed) for store in part.stores)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The CUDA kernel as an H200 would have it, without a launch."""

    def padded_widths(layout, device, previous, dim):
        return {name: -(-width // 16) * 16 for name, width in layout.widths.items()}

    monkeypatch.setattr(plane_layouts.PlaneLayout, "padded_widths", padded_widths)
    monkeypatch.setattr(cuda, "available", lambda device: True)
    monkeypatch.setattr(cuda, "_fitted", lambda variant, device, units: variant.fitted(*H200, units))
    monkeypatch.setattr(angle_kernel, "available", lambda device: True)
    monkeypatch.setattr(angle_kernel, "_fitted", lambda variant, device, units: variant.fitted(*H200, units / 132))


def backend_of(segment, call):
    if not gpu.supports(segment, call):
        return "torch"
    keys, values = segment.key.format, segment.value.format
    if cuda_pages.reads(gpu._decode_call(call), keys, values, call.bias):
        return "cuda"
    if isinstance(keys, AngleFormat):
        query = gpu._decode_call(call).query
        residual = ResidualInputs(query, call.residual_key, call.residual_value, call.scaling)
        assert angle_kernel.choose(query, keys, values, call.bias, residual) is not None
        return "cuda, angle codes"
    return "triton" if isinstance(keys, (PackedFormat, DenseFormat)) else "codec and triton"


def segment_and_query(policy, dim=DIM):
    """A packed segment, what lies behind it, and a query of one token."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, TOKENS, dim)
    key, value = (torch.randn(shape, generator=generator).to(torch.bfloat16) for _ in range(2))
    query = torch.randn(1, ROWS * HEADS, 1, dim, generator=generator).to(torch.bfloat16)
    return Segment(pack(policy, key, value)), (key[:, :, :40], value[:, :, :40], None, dim**-0.5), query


def test_backend_of_outlier_tokens(as_on_a_gpu):
    kept = spec("rd", 2, outliers=1)
    segment, behind, query = segment_and_query(replace(get_policy("rd2"), text=KVSpec(kept, kept)))
    assert segment.key.format.kept is not None and segment.value.format.kept is not None
    assert backend_of(segment, AttentionCall(query, *behind)) == "cuda"
    assert gpu.supports(segment, AttentionCall(query.repeat(1, 1, 20, 1), *behind))


@pytest.mark.parametrize("name", policies())
def test_backend(as_on_a_gpu, name):
    segment, behind, query = segment_and_query(get_policy(name))
    call = AttentionCall(query, *behind)
    backend = backend_of(segment, call)
    assert backend == NOT_CUDA.get(name, "cuda")
    if backend == "torch":
        return
    # more rows than the products of integers take: values that only the CUDA kernel knows go to torch, others to Triton
    many = AttentionCall(query.repeat(1, 1, 20, 1), *behind)
    values = segment.value.format
    plain = not isinstance(values, PackedFormat) or values.plain_codes
    assert many.rows > triton_call.INT8_ROWS and gpu.supports(segment, many) == plain
    assert plain != (name in NOT_PLAIN)


@pytest.mark.parametrize(("dim", "name"), [(dim, name) for dim, names in OTHER_DIMS.items() for name in names])
def test_backend_of_other_dims(as_on_a_gpu, dim, name):
    segment, behind, query = segment_and_query(get_policy(name), dim)
    assert backend_of(segment, AttentionCall(query, *behind)) == "cuda"


@pytest.mark.parametrize(("dim", "name"), NOT_CUDA_OF_OTHER_DIMS)
def test_other_backends_of_other_dims(as_on_a_gpu, dim, name):
    segment, behind, query = segment_and_query(get_policy(name), dim)
    assert backend_of(segment, AttentionCall(query, *behind)) == NOT_CUDA_OF_OTHER_DIMS[dim, name]


def test_every_exception_is_a_preset():
    assert set(NOT_CUDA) <= set(policies())
