"""The CUDA split kernel against its contract in float64, and whether every variant compiles."""

import ctypes
import re
import uuid
from dataclasses import replace

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import nvrtc
from kvmm.kernels.attention.backends.cuda.arguments import arguments_of
from kvmm.kernels.attention.backends.cuda.inputs import (
    KeyPlanes,
    rows_of,
)
from kvmm.kernels.attention.backends.cuda.splits import best_residual_splits, best_splits, grid_of
from kvmm.kernels.attention.backends.cuda.variant import laid_out, variant_of
from kvmm.kernels.attention.format import aligned
from tests.kernels.cuda_cases import (
    CASES,
    RESIDUAL_CASES,
    library_of,
    make,
    make_residual,
    outputs_of,
    residual_outputs,
)
from tests.kernels.cuda_reference import check, check_residual, has_zero, reference

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not cuda.available(torch.device("cuda", 0)), reason="needs an NVIDIA GPU"
)


@needs_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("pages", "splits"), [(37, 3), (5, 4), (1, 2)])
def test_matches_reference(name, pages, splits):
    q8, qw, qz, keys, values, bias = make(name, pages=pages, capacity=pages + 3, device="cuda")
    assert cuda.supports(q8, keys, values, bias)
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32, device="cuda")
    cuda.split_kernel(q8, qw, qz, keys, values, *outputs[:3], num_pages=used, bias=bias, out_z=outputs[3])
    check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(keys, values), qw is None)


@pytest.mark.parametrize(
    ("name", "warps", "stages"),
    [
        ("two planes", 2, 1),
        ("1 bit", 2, 2),
        ("groups by map", 2, 2),
        ("value groups by page", 2, 1),
        ("narrow planes", 1, 1),
        ("pages of 64, 4 and 8 bits", 2, 2),
        ("12 rows", 2, 1),
        ("span folded", 2, 1),
        ("bf16 folded", 1, 1),
        ("digits of 256 channels", 2, 1),
        ("digits of 256 channels, 7 rows", 1, 1),
        ("gathered and folded", 2, 1),
        ("page folded", 2, 2),
        ("map folded, 7 rows", 1, 1),
        ("map folded, float32", 2, 1),
        ("map folded, 80 channels", 2, 1),
        ("map folded, 112 channels, 7 rows", 1, 2),
        ("keys by token", 2, 2),
        ("keys by token, 7 rows", 1, 1),
        ("two heads a store", 2, 1),
        ("four heads a store", 2, 1),
        ("four heads a store, 16 rows", 1, 1),
        ("four narrow heads a store, 7 rows", 2, 2),
        ("keys in groups of channels, 7 rows", 1, 1),
        ("means behind norms", 2, 1),
        ("slots left out", 2, 1),
        ("many slots left out", 1, 2),
        ("channels by page", 2, 2),
        ("channels by map, 7 rows", 1, 1),
        ("bits of 2", 2, 2),
        ("bits of 3 and 2", 2, 1),
        ("bits of 3, 7 rows", 1, 1),
        ("bits of 2, pages of 64", 1, 1),
        ("bits of 3 of few channels", 2, 1),
        ("bits of 3 of 48 channels, 7 rows", 1, 1),
        ("two norms", 2, 2),
        ("two norms, means, 1 row", 2, 1),
        ("two norms, 16 channels", 1, 2),
        ("two norms, 7 rows", 2, 1),
        ("two norms, 16 rows", 1, 1),
        ("two norms of keys, 96 channels", 2, 1),
        ("bits of 2 of 80 channels", 2, 1),
        ("bits of 2 of 112 channels, 7 rows", 1, 2),
        ("bits of 3 of 40 of 80 channels", 2, 2),
        ("bits of 3 of 48 of 96 channels, 7 rows", 1, 1),
        ("bits of 3 of 128 of 256 channels", 2, 1),
        ("bits of 3 of 80 of 160 channels, values of 72 of 144", 2, 1),
        ("two norms, 8 of 32 channels, 7 rows", 1, 1),
        ("two norms, 24 of 96 channels", 1, 2),
        ("two norms, 40 of 80 channels, 16 rows", 1, 1),
        ("two norms, 64 of 256 channels", 2, 1),
        ("groups of 32", 2, 1),
        ("groups of 32, norms", 1, 2),
        ("groups of 32, 4 bits", 2, 1),
        ("groups of 32, 80 channels", 2, 1),
        ("groups of 32, 112 channels, 7 rows", 1, 2),
        ("groups of 16, 7 rows", 2, 1),
        ("8 bits and groups of channels", 1, 1),
        ("256 channels in groups", 1, 1),
    ],
)
def test_matches_reference_on_a_cpu(name, warps, stages, tmp_path):
    """The same source, a lane at a time: which bits and bytes go where needs no GPU."""
    pages, splits = 5, 2
    q8, qw, qz, keys, values, bias = make(name, batch=1, pages=pages)
    variant = replace(variant_of(q8, keys, values, bias), warps=warps, stages=stages)
    assert variant.residual == 0
    library = library_of(variant, tmp_path / "digits.so")
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32)
    arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3])
    grid = grid_of(q8, keys, variant, splits)
    library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
    check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(keys, values), qw is None)


@pytest.mark.parametrize("name", ["most digits", "bits of 3 of 128 of 256 channels"])
def test_largest_sums_on_a_cpu(name, tmp_path):
    """All codes and parts of the query are as large as they get: sums of more lanes than channels fit 31 bits."""
    pages, splits = 5, 2
    q8, qw, qz, keys, values, _ = make(name, batch=1, pages=pages)
    for codes, _ in keys.planes:
        codes.fill_(255)
    if keys.bit_lanes:
        q8 = replace(q8, plane_weight=torch.ones_like(q8.plane_weight))
    highest = torch.zeros(256).scatter_reduce(0, q8.lane_channel.long(), q8.plane_weight, "amax")
    rows = (1 / highest).to(q8.rows.dtype).expand_as(q8.rows).contiguous()
    q8 = replace(q8, rows=rows, scale=torch.ones_like(q8.scale))
    variant = replace(variant_of(q8, keys, values), warps=2, stages=1)
    assert sum(variant.key_lanes) == (384 if keys.bit_lanes else 480)
    library = library_of(variant, tmp_path / "digits.so")
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32)
    arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, None, outputs[3])
    library.launch(ctypes.byref(arguments), *grid_of(q8, keys, variant, splits), variant.shared_bytes)
    check(outputs, reference(q8, qw, qz, keys, values, pages, splits, None), has_zero(keys, values), qw is None)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bits of 3 of 80 of 160 channels, values of 72 of 144", {"lanes": 72}),  # rows that no chunk of 16 bytes fits
        ("bits of 3 of 40 of 80 channels", {"bit_lanes": False}),
        ("bits of 3 of 40 of 80 channels", {"groups_in_page": 4}),
        ("bits of 3 of 40 of 80 channels", {"page_size": 64}),
    ],
)
def test_bits_that_the_kernel_cannot_read(name, change):
    q8, _, _, keys, values, _ = make(name)
    assert variant_of(q8, keys, values) is not None
    if "lanes" in change:
        (first, two), (second, one) = keys.planes
        change = {"planes": ((first, two), (second[..., : change["lanes"]].contiguous(), one))}
    if "page_size" in change:
        change |= {"planes": tuple((x[..., : x.shape[-2] // 2, :].contiguous(), bits) for x, bits in keys.planes)}
        values = replace(values, planes=tuple((x[..., : x.shape[-1] // 2].contiguous(), b) for x, b in values.planes))
    assert variant_of(q8, replace(keys, **change), values) is None


@pytest.mark.parametrize("channels", [None, 257])
def test_more_lanes_are_digits_of_256_channels(channels):
    q8, _, _, keys, values, _ = make("digits of 256 channels")
    assert variant_of(q8, keys, values) is not None
    assert variant_of(q8, replace(keys, channels=channels), values) is None
    assert variant_of(q8, keys, replace(values, has_plane_weights=False)) is None


@pytest.mark.parametrize("name", ["two planes", "12 rows", "value groups by page", "pages of 64, 4 and 8 bits"])
def test_sums_by_channel_on_a_cpu(name, tmp_path):
    """PackedFormat are added to channels where the block's warps are joined."""
    pages, splits = 5, 2
    q8, qw, qz, keys, values, bias = make(name, batch=1, pages=pages)
    generator = torch.Generator().manual_seed(3)
    real, start = [], 0
    for codes, _ in values.planes:
        real += range(start, start + codes.shape[-2])
        start += aligned(codes.shape[-2])
    lanes = torch.tensor(real)[torch.randint(0, len(real), (3, 72), generator=generator)].int()
    weights = 4.0 ** torch.randint(-1, 2, (3, 72), generator=generator)
    expected = reference(q8, qw, qz, keys, values, pages, splits, bias)
    expected[2] = (expected[2][..., lanes.long()] * weights).sum(-2)
    values = replace(values, channels=(lanes, weights))
    variant = replace(variant_of(q8, keys, values, bias), warps=2, stages=1)
    library = library_of(variant, tmp_path / "digits.so")
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32)
    arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3])
    library.launch(ctypes.byref(arguments), *grid_of(q8, keys, variant, splits), variant.shared_bytes)
    check(outputs, expected, has_zero(keys, values))


@needs_gpu
@pytest.mark.parametrize("columns", [0, 1, 15, 132, 700])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", RESIDUAL_CASES)
def test_residual_tokens(name, columns, biased):
    case, dims, dtype, count, apart = RESIDUAL_CASES[name]
    q8, qw, qz, keys, values, bias = make(case, pages=9, device="cuda", capacity=12)
    residual = make_residual(2, 2, rows_of(q8), columns, dims, dtype, biased, device="cuda")
    assert cuda.choose(q8, keys, values, bias, residual) is not None
    outputs, residual_out = outputs_of(q8, keys, values, 3), residual_outputs(residual, count, apart)
    used = torch.tensor([9], dtype=torch.int32, device="cuda")
    cuda.split_kernel(
        q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3], residual=residual, residual_out=residual_out
    )
    check(outputs, reference(q8, qw, qz, keys, values, 9, 3, bias), has_zero(keys, values), qw is None)
    check_residual(residual, residual_out)


@pytest.mark.parametrize("name", RESIDUAL_CASES)
def test_residual_tokens_on_a_cpu(name, tmp_path):
    case, dims, dtype, count, apart = RESIDUAL_CASES[name]
    pages, splits = 5, 2
    q8, qw, qz, keys, values, bias = make(case, batch=2, heads=1, pages=pages)
    library = None
    for columns, biased in ((70, False), (37, True), (0, False), (1, False)):
        residual = make_residual(2, 1, rows_of(q8), columns, dims, dtype, biased)
        variant = replace(variant_of(q8, keys, values, bias, residual), warps=3, stages=1)
        library = library or library_of(variant, tmp_path / "digits.so")
        outputs, residual_out = outputs_of(q8, keys, values, splits), residual_outputs(residual, count, apart)
        used = torch.tensor([pages], dtype=torch.int32)
        arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3], residual, residual_out)
        grid = grid_of(q8, keys, variant, splits, residual_out)
        library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
        check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(keys, values), qw is None)
        check_residual(residual, residual_out)


@pytest.mark.parametrize(
    ("units", "columns", "splits", "expected"),
    [(8, 132, 32, (1, True)), (8, 132, 8, (2, True)), (256, 132, 1, (1, False)), (32, 700, 8, (6, False))],
)
def test_best_residual_splits(units, columns, splits, expected):
    assert best_residual_splits(units, columns, slots=264, warps=8, splits=splits) == expected


@needs_gpu
def test_replays_in_a_graph():
    q8, qw, qz, keys, values, _ = make("2 bits", pages=20, capacity=24, device="cuda")
    outputs = outputs_of(q8, keys, values, 3)
    used = torch.tensor([20], dtype=torch.int32, device="cuda")

    def step():
        cuda.split_kernel(q8, qw, qz, keys, values, *outputs[:3], num_pages=used)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for pages in (20, 7, 1, 0):
        used.fill_(pages)
        for output in outputs[:3]:
            output.fill_(float("nan"))
        graph.replay()
        check(outputs, reference(q8, qw, qz, keys, values, pages, 3), False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0)])
def test_compiles(name, capability):
    """Every variant compiles for every kind of GPU, (almost) without spilling, and fits its shared memory."""
    if nvrtc.nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    q8, _, _, keys, values, bias = make(name)
    check_compiles(variant_of(q8, keys, values, bias), capability)


@pytest.mark.parametrize("name", RESIDUAL_CASES)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_compiles_with_residual_tokens(name, capability):
    if nvrtc.nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    case, dims, dtype, _, _ = RESIDUAL_CASES[name]
    q8, _, _, keys, values, bias = make(case)
    residual = make_residual(2, 2, rows_of(q8), 40, dims, dtype, False)
    check_compiles(variant_of(q8, keys, values, bias, residual), capability)


def check_compiles(variant, capability):
    block, total = {(8, 0): (163, 164), (8, 9): (99, 100), (9, 0): (227, 228)}[capability]
    variant = variant.fitted(block * 1024, total * 1024)
    assert variant is not None
    assert variant.blocks * (variant.shared_bytes + 1024) <= total * 1024
    # the program has to be new all the way down: from the caches on disk there is no log
    fresh = cuda._SOURCE.read_bytes() + f'\nextern "C" __device__ int unique_{uuid.uuid4().hex};\n'.encode()
    program, log = nvrtc.compile_source(fresh, "attention.cu", cuda.headers_of(variant), capability)
    assert program[1:4] == b"ELF"
    assert int(re.search(r"(\d+) bytes spill stores", log).group(1)) <= 128


@pytest.mark.parametrize(
    "change",
    [
        {"page_size": 96},
        {"norm": torch.ones(2, 2, 8, 128, dtype=torch.bfloat16)},
        {"planes": ()},
        {"planes": ((torch.zeros(2, 2, 8, 32, 120, dtype=torch.uint8), 2),)},  # digits not a multiple of 16
        {"planes": ((torch.zeros(2, 2, 8, 32, 256, dtype=torch.uint8)[..., ::2], 2),)},  # not contiguous
        {"planes": ((torch.zeros(2, 2, 8, 32, 512, dtype=torch.uint8), 2),)},  # sums would not fit
    ],
)
def test_no_variant(change):
    q8, _, _, keys, values, _ = make("2 bits")
    fields = {name: getattr(keys, name) for name in ("planes", "page_size", "group", "norm")}
    assert variant_of(q8, KeyPlanes(**(fields | change)), values) is None


def test_not_on_a_cpu():
    q8, qw, qz, keys, values, _ = make("2 bits")
    assert not cuda.supports(q8, keys, values)
    with pytest.raises(KVMMError, match="Triton"):
        cuda.split_kernel(q8, qw, qz, keys, values, *outputs_of(q8, keys, values, 1)[:3])


@pytest.mark.parametrize(
    ("units", "pages", "columns", "expected"),
    [(8, 1024, 0, 32), (8, 1023, 0, 33), (8, 1023, 128, 32), (256, 63, 128, 1), (8, 1, 128, 1), (1, 8, 0, 1)],
)
def test_best_splits(units, pages, columns, expected):
    """Where a block is left for the residual tokens, no block with pages has to take them besides."""
    assert best_splits(units, pages, slots=264, warps=8, residual_tokens=columns) == expected


def test_addresses_count_whatever_the_strides():
    """What is remembered of shapes and strides says nothing of where a tensor begins."""
    room = torch.zeros(64, dtype=torch.uint8)
    start = -room.data_ptr() % 16
    first, second = (room[start + shift : start + shift + 32].view(2, 16) for shift in (0, 1))
    assert [laid_out(x, inner=1) for x in (first, second, first)] == [True, False, True]
    assert not laid_out(first.t(), inner=1) and not laid_out(first[:, :8].contiguous(), inner=1)
