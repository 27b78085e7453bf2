"""The CUDA kernel of angle codes against float64, on a CPU a lane at a time, and whether its variants compile."""

import ctypes
import re
from dataclasses import replace

import pytest
import torch

from kvmm.codecs import Site, build_codec
from kvmm.codecs.base import EncodeContext
from kvmm.kernels.angle.recursive import vectors_of
from kvmm.kernels.attention.backends.cuda import angle_kernel, nvrtc
from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda.inputs import ResidualInputs, ResidualSplits
from kvmm.kernels.attention.backends.triton.call import LOG2E, Partial
from kvmm.kernels.attention.format import DenseFormat, aligned
from kvmm.modality import TEXT
from kvmm.policy import spec
from tests.kernels.cuda_cases import library_of
from tests.kernels.cuda_reference import check_residual

SOURCE = cuda._SOURCE.with_name(angle_kernel.SOURCE)
HEADS, PAGES = 2, 5
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not cuda.available(torch.device("cuda", 0)), reason="needs an NVIDIA GPU"
)


def angle(group, bits):
    return spec(
        "spherical",
        (bits + 8) / group if (bits + 8) % group else (bits + 8) // group,
        group=group,
        index_bits=bits,
        code="angle",
    )


# spec of keys, channels, tokens a page, query rows, dtype
CASES = {
    "high": (spec("spherical", 0.875), 128, 128, 4, torch.bfloat16),
    "mid, 7 rows": (spec("spherical", 0.75, gain=1.1), 128, 128, 7, torch.bfloat16),
    "low": (spec("spherical", 0.34375), 128, 128, 1, torch.float16),
    "high, 64 channels, pages of 64": (spec("spherical", 0.875), 64, 64, 4, torch.bfloat16),
    "high, 80 channels, 16 rows": (spec("spherical", 0.875), 80, 128, 16, torch.bfloat16),
    "mid, 96 channels, pages of 32": (spec("spherical", 0.75), 96, 32, 3, torch.bfloat16),
    "low, 256 channels, 12 rows": (spec("spherical", 0.34375), 256, 64, 12, torch.float16),
    "8 bits": (angle(16, 8), 64, 128, 4, torch.bfloat16),
    "7 bits, 5 rows": (angle(8, 7), 64, 32, 5, torch.bfloat16),
    "1 bit": (angle(32, 1), 64, 32, 4, torch.bfloat16),
    "recursive, 4 bits": (spec("spherical-angles", 4), 128, 128, 4, torch.bfloat16),
    "recursive, 3 bits, 64 channels, 7 rows": (spec("spherical-angles", 3, gain=1.2), 64, 128, 7, torch.float16),
    "recursive, 2 bits, pages of 64": (spec("spherical-angles", 2, levels="uniform"), 80, 64, 3, torch.bfloat16),
    "recursive, 1 bit": (spec("spherical-angles", 1), 64, 128, 12, torch.bfloat16),
}


def make(name, batch=2, pages=PAGES, device="cpu", bias=True, query_dtype=None):
    """Query, format of keys and values, and bias of a case: two groups of pages with means of their own."""
    key_spec, dim, page, rows, dtype = CASES[name]
    generator = torch.Generator().manual_seed(1)
    codec = build_codec(key_spec, "key", Site(0, TEXT, None, spec("bf16")))
    x = torch.randn(batch, HEADS, pages * page, dim, generator=generator) + 0.5
    context = EncodeContext(page_size=page)
    packed = codec.encode(x.to(device), context)
    keys = codec.packed_format(packed)
    mean = torch.cat((keys.mean, torch.randn(keys.mean.shape, generator=generator).to(keys.mean)), 2)
    group = torch.tensor([1, 0, -1, 0, -2] * pages, dtype=torch.int32, device=device)[:pages]
    keys = replace(keys, mean=mean, page_group=group)
    values = torch.randn(batch, HEADS, pages, page, dim, generator=generator).to(device, dtype)
    query = torch.randn(batch * HEADS, rows, dim, generator=generator).to(device, query_dtype or dtype)
    holes = torch.rand(batch, pages * page, generator=generator) < 0.1
    added = torch.where(holes, -1e30, torch.randn(batch, pages * page, generator=generator)).to(device)
    return query, keys, DenseFormat(values, page), added if bias else None


def decoded(keys, pages):
    """Keys in float64 ``[B, H, tokens, D]``: a direction times its length, plus the mean of the page."""
    rows, index = keys.codes[:, :, :pages].cpu(), 0
    size, bits, above = keys.page_size, keys.index_bits, 0
    for width in (8, 4, 2, 1):
        if bits & width:
            held = size * width // 8
            token = torch.arange(size)
            byte = rows[:, :, :, above + token % held].long()
            index = index << width | byte >> (width * (token // held))[:, None] & (2**width - 1)
            above += held
    batch, heads = rows.shape[:2]
    length = keys.radius[:, :, :pages].cpu().double() * keys.scale[:, :, :pages, None, None].cpu().double() / 255
    mean = keys.mean.cpu().double()[:, :, keys.page_group[:pages].cpu().long() % keys.mean.shape[2]]
    if keys.recursive:
        level = keys.codebook.cpu().double()[0, torch.arange(keys.angles), index]
        x = vectors_of(level[..., 0], level[..., 1], keys.gain * length[..., 0])
        return (x + mean.unsqueeze(3)).flatten(2, 3)
    book = keys.codebook.cpu().double().expand(heads, keys.groups, -1, -1)
    head, group = torch.arange(heads)[:, None, None, None], torch.arange(keys.groups)
    x = torch.stack([book[head, group, index[b]] for b in range(batch)])
    x = (x * length.unsqueeze(-1)).flatten(-2)
    return (x + mean.unsqueeze(3)).flatten(2, 3)


def outputs_of(keys, values, rows, splits, residual=None, apart=False, parts=2):
    """Where results go, with what shows where nothing is written."""

    def empty(count, *width):
        bh = keys.codes.shape[0] * keys.codes.shape[1]
        return torch.full((bh, count, rows, *width), float("nan"), device=keys.codes.device)

    dim = values.values.shape[-1]
    out = Partial(empty(splits), empty(splits), empty(splits, dim))
    if residual is None:
        return out, None
    out.residual = Partial(empty(parts), empty(parts), empty(parts, aligned(dim)))
    return out, ResidualSplits(out.residual.m, out.residual.l, out.residual.acc, apart)


def check(out, query, scaling, keys, values, bias, pages):
    """Each split against float64."""
    splits, size = out.m.shape[1], keys.page_size
    x = query.cpu().double() @ decoded(keys, pages).flatten(0, 1).transpose(1, 2) * scaling
    if bias is not None:
        x = x + bias[:, : pages * size].cpu().double().repeat_interleave(HEADS, 0)[:, None] * LOG2E
    v = values.values[:, :, :pages].cpu().double().flatten(2, 3).flatten(0, 1)
    for split in range(splits):
        own = (torch.arange(pages * size) // size % splits == split).nonzero()[:, 0]
        m, l, acc = (t[:, split].cpu() for t in (out.m, out.l, out.acc))
        if len(own) == 0:
            assert (m == float("-inf")).all() and not l.any() and not acc.any()
            continue
        part = x[..., own]
        largest = part.amax(-1)
        p = (part - largest[..., None]).exp2()
        torch.testing.assert_close(m.double(), largest, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(l.double(), p.sum(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(acc.double(), p @ v[:, own], rtol=2e-4, atol=3e-4)


def make_residual(query, keys, values, tokens=45, length=40):
    generator = torch.Generator().manual_seed(2)
    batch, heads, dim = keys.codes.shape[0], keys.codes.shape[1], values.values.shape[-1]
    x = torch.randn(2, batch, heads, tokens, dim, generator=generator).to(values.values)
    length = torch.tensor([length], dtype=torch.int32, device=query.device)
    return ResidualInputs(query, x[0], x[1], 0.1, None, length)


@pytest.mark.parametrize(("name", "warps", "stages"), [(name, 1 + i % 2, 2 + i % 2) for i, name in enumerate(CASES)])
def test_matches_reference_on_a_cpu(name, warps, stages, tmp_path):
    """The same source, a lane at a time: which bits and bytes go where needs no GPU."""
    query, keys, values, bias = make(name, batch=1, bias=warps == 2)
    splits, used = 2, torch.tensor([PAGES - 1], dtype=torch.int32)
    variant = angle_kernel.variant_of(query, keys, values, bias, None)
    variant = replace(variant, warps=warps, stages=stages)
    library = library_of(variant, tmp_path / "angles.so", SOURCE, angle_kernel.ARGUMENTS)
    out, _ = outputs_of(keys, values, query.shape[1], splits)
    arguments = angle_kernel.arguments_of(query, 0.1, keys, values, out, used, bias, None, None)
    grid = angle_kernel.grid_of(variant, query.shape[1], 1, HEADS, splits)
    library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
    check(out, query, 0.1, keys, values, bias, PAGES - 1)


@pytest.mark.parametrize(("name", "apart"), [("high", True), ("mid, 7 rows", False)])
def test_residual_tokens_on_a_cpu(name, apart, tmp_path):
    """Residual tokens are read by the same blocks as the pages, or by blocks of their own; a split without a page."""
    query, keys, values, _ = make(name, pages=3, bias=False)
    residual, splits, parts = make_residual(query, keys, values), 4, 2
    variant = replace(angle_kernel.variant_of(query, keys, values, None, residual), warps=1, stages=2)
    library = library_of(variant, tmp_path / "angles.so", SOURCE, angle_kernel.ARGUMENTS)
    out, residual_out = outputs_of(keys, values, query.shape[1], splits, residual, apart, parts)
    arguments = angle_kernel.arguments_of(query, 0.1, keys, values, out, None, None, residual, residual_out)
    grid = angle_kernel.grid_of(variant, query.shape[1], 2, HEADS, splits + apart * parts)
    library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
    check(out, query, 0.1, keys, values, None, 3)
    check_residual(residual, out.residual)


@pytest.mark.parametrize("name", ["high", "mid, 7 rows", "low, 256 channels, 12 rows", "1 bit", "recursive, 4 bits"])
def test_compiles(name):
    """Also what a GPU of little shared memory takes."""
    if nvrtc.nvrtc() is None:
        pytest.skip("needs NVRTC")
    query, keys, values, bias = make(name, batch=1)
    variant = angle_kernel.variant_of(query, keys, values, bias, make_residual(query, keys, values))
    for capability, block, total in (((9, 0), 227, 228), ((8, 9), 99, 100)):
        fitted = variant.fitted(block * 1024, total * 1024)
        _, log = angle_kernel.compile_variant(fitted, capability)
        spilled = re.search(r"(\d+) bytes spill stores", log)
        assert spilled is None or int(spilled[1]) <= 160


def test_what_has_no_variant():
    query, keys, values, bias = make("high")
    assert angle_kernel.variant_of(query, keys, values, bias, None) is not None
    for other in (
        replace(keys, radius=keys.radius[..., :-1]),
        replace(keys, codes=keys.codes[:, :, :, :-1]),
        replace(keys, mean=keys.mean[:, :, :0]),
        replace(keys, codebook=keys.codebook[:, :, :-1]),
        replace(keys, scale=keys.scale.bfloat16()),
        replace(keys, codes=keys.codes.transpose(-1, -2).contiguous().transpose(-1, -2)),
    ):
        assert angle_kernel.variant_of(query, other, values, bias, None) is None
    assert angle_kernel.variant_of(query, keys, DenseFormat(values.values.float(), 128), bias, None) is None
    assert angle_kernel.variant_of(query, keys, values, bias.double(), None) is None


@needs_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("pages", "splits"), [(37, 3), (5, 4), (1, 2)])
def test_matches_reference(name, pages, splits):
    query, keys, values, bias = make(name, pages=pages + 3, device="cuda")
    for residual in (None, make_residual(query, keys, values)):
        variant = angle_kernel.choose(query, keys, values, bias, residual)
        out, residual_out = outputs_of(keys, values, query.shape[1], splits, residual)
        used = torch.tensor([pages], dtype=torch.int32, device="cuda")
        arguments = angle_kernel.arguments_of(query, 0.1, keys, values, out, used, bias, residual, residual_out)
        grid = angle_kernel.grid_of(variant, query.shape[1], 2, HEADS, splits)
        angle_kernel.launch(variant, grid, arguments, query.device)
        check(out, query, 0.1, keys, values, bias, pages)
        if residual is not None:
            check_residual(residual, out.residual)
