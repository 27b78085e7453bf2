"""The CUDA split kernel against its contract in float64, and whether every variant compiles."""

import ctypes
import math
import platform
import re
import shutil
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import nvrtc
from kvmm.kernels.attention.backends.cuda.arguments import arguments_of, header_text
from kvmm.kernels.attention.backends.cuda.inputs import (
    DenseColumns,
    DenseSplits,
    DigitKeys,
    DigitValues,
    Query,
    rows_of,
)
from kvmm.kernels.attention.backends.cuda.splits import best_dense_splits, best_splits, grid_of
from kvmm.kernels.attention.backends.cuda.variant import variant_of
from kvmm.kernels.attention.format import aligned
from kvmm.kernels.quantize.reference import pack_planes, unpack_planes

HALF = torch.float16
LOG2_E = 1.0 / math.log(2)

# name: page, rows, key planes (digits, bits), value planes, options
CASES = {
    "2 bits": (128, 4, [(128, 2)], [(128, 2)], {}),
    "1 bit": (128, 4, [(128, 1)], [(128, 1)], {"norm": HALF, "value_norm": HALF}),
    "norms in float32": (128, 4, [(128, 2)], [(128, 2)], {"norm": torch.float32, "value_norm": torch.float32}),
    "4 bits, 1 row": (128, 1, [(64, 4)], [(64, 4)], {"norm": HALF}),
    "8 bits, 2 rows": (128, 2, [(64, 8)], [(64, 8)], {}),
    "two planes": (128, 4, [(96, 2), (32, 1)], [(96, 2), (32, 1)], {"norm": HALF, "bias": True}),
    "narrow planes": (128, 3, [(80, 1), (48, 2)], [(80, 1), (48, 4)], {"bias": True}),
    "4 bits and 1": (128, 4, [(64, 4), (64, 1)], [(64, 8), (64, 1)], {}),
    "groups by page": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "token": torch.float16, "norm": HALF},
    ),
    "groups by map": (128, 4, [(128, 2), (16, 2)], [(128, 2)], {"group": "map", "token": torch.float32}),
    "value groups": (128, 4, [(128, 1)], [(112, 2)], {"value_group": "map", "value_norm": HALF}),
    "value groups by page": (128, 7, [(128, 1)], [(64, 2), (32, 1)], {"value_group": "page", "bias": True}),
    "7 rows": (128, 7, [(128, 2)], [(128, 2)], {"norm": HALF, "value_norm": HALF}),
    "8 rows, 1 bit": (128, 8, [(64, 1)], [(64, 1)], {"bias": True, "odd_bias": True}),
    "16 rows": (128, 16, [(64, 2)], [(64, 2)], {"group": "page"}),
    "12 rows": (128, 12, [(128, 2)], [(64, 2)], {}),
    "256 channels": (128, 4, [(256, 2)], [(256, 2)], {"norm": HALF, "value_norm": HALF}),
    "256 channels, 8 rows": (128, 8, [(256, 2)], [(256, 1)], {"norm": HALF}),
    "pages of 64": (64, 4, [(128, 2)], [(128, 2)], {"norm": HALF, "value_norm": HALF, "bias": True}),
    "pages of 64, 4 and 8 bits": (64, 5, [(64, 4), (64, 2)], [(32, 8), (64, 4)], {"group": "map"}),
    # the kernel folds the scales of keys into the query
    "span folded": (128, 4, [(112, 2), (48, 1)], [(128, 2)], {"query": (torch.float32, "picked"), "norm": HALF}),
    "bf16 folded": (128, 3, [(128, 1)], [(128, 1)], {"query": (torch.bfloat16, "plain")}),
    "gathered and folded": (64, 7, [(64, 2), (96, 2)], [(64, 2)], {"query": (HALF, "picked")}),
    "page folded": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "query": (torch.float32, "plain"), "token": HALF, "norm": HALF},
    ),
    "map folded, 7 rows": (128, 7, [(64, 2), (32, 2)], [(64, 2)], {"group": "map", "query": (torch.float32, "plain")}),
    "map folded, float32": (
        64,
        2,
        [(96, 4)],
        [(32, 4)],
        {"group": "map", "query": (torch.float32, "plain", torch.float32)},
    ),
}


def make(name, batch=2, heads=2, pages=5, capacity=8, device="cpu", seed=0):
    """A random case: arguments of ``split_digits`` except outputs, on views of buffers with spare capacity."""
    page, rows, key_planes, value_planes, options = CASES[name]
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, low=0.5, high=2.0, dtype=torch.float32):
        return (torch.rand(*shape, generator=generator) * (high - low) + low).to(dtype).to(device)

    def stored(x):  # poison behind the pages
        spare = torch.full((*x.shape[:2], capacity - pages, *x.shape[3:]), 255).to(x.dtype).to(device)
        if x.is_floating_point():
            spare.fill_(float("nan"))
        return torch.cat([x, spare], 2)

    def codes(digits, bits, transposed):
        x = torch.randint(0, 2**bits, (batch, heads, pages, page, digits), generator=generator, dtype=torch.uint8)
        x = x.transpose(-1, -2).contiguous() if transposed else x
        return stored(pack_planes(x.to(device), bits, -1 if transposed else -2))

    def grouping(kind):
        if kind == "page":
            return kind, capacity
        if kind == "map":
            return (torch.arange(capacity, dtype=torch.int32) % 5 - 2).to(device), 3
        return "span", 1

    width = sum(aligned(digits) for digits, _ in key_planes)
    group, groups = grouping(options.get("group"))
    q8 = torch.randint(-127, 128, (batch, heads, groups, 2 * rows, width), generator=generator, dtype=torch.int8)
    start = 0
    for digits, _ in key_planes:
        q8[..., start + digits : start + aligned(digits)] = 0
        start += aligned(digits)
    levels = max(2**bits for _, bits in key_planes)
    qw = random(batch, heads, groups, rows) * 2 / (127 * 254 * levels * math.sqrt(width))
    qz = random(batch, heads, groups, rows, low=-1, high=1)
    if "query" in options:
        q8, qw, qz = (
            make_query(key_planes, (batch, heads, groups, rows), options, random, generator, device),
            None,
            None,
        )
    norm = options.get("norm")
    keys = DigitKeys(
        planes=tuple((codes(digits, bits, False), bits) for digits, bits in key_planes),
        page_size=page,
        group=group,
        norm=None if norm is None else stored(random(batch, heads, pages, page, dtype=norm)),
    )
    value_group, value_groups = grouping(options.get("value_group"))
    token, norm = options.get("token"), options.get("value_norm")
    scale = zero_point = None
    value_width = sum(aligned(digits) for digits, _ in value_planes)
    if token is not None:
        scale = stored(random(batch, heads, pages, 1, page, dtype=token))
        zero_point = stored(random(batch, heads, pages, 1, page, low=-1, dtype=token))
    elif value_groups > 1:
        scale = random(batch, heads, value_groups, value_width)
        zero_point = random(batch, heads, value_groups, 64, low=-1)
    values = DigitValues(
        planes=tuple((codes(digits, bits, True), bits) for digits, bits in value_planes),
        axis="channel" if token is None else "token",
        scale=scale,
        zero_point=zero_point,
        group=value_group,
        # one norm for all heads
        norm=None if norm is None else stored(random(batch, 1, pages, page, dtype=norm)).expand(-1, heads, -1, -1),
    )
    bias = None
    if options.get("bias"):
        odd = bool(options.get("odd_bias"))
        bias = torch.zeros(batch, capacity * page + odd)
        bias[torch.rand(bias.shape, generator=generator) < 0.3] = -1e30
        bias[:, : 2 * page] = -1e30  # whole pages without a token
        bias = bias.to(device)[:, odd:]
    return q8 if qw is None else q8.to(device), qw, qz, keys, values, bias


def make_query(planes, sizes, options, random, generator, device):
    """A random ``Query``; by kind: ``plain``, digit ``j`` is channel ``j``; ``picked``, digits are channels of any
    order, with places and offsets."""
    batch, heads, groups, rows = sizes
    dtype, kind, parameters = (*options["query"], HALF)[:3]
    widths = [aligned(digits) for digits, _ in planes]
    columns, channels = sum(widths), sum(digits for digits, _ in planes) - (kind != "plain") * 8
    index = place = offset = None
    if kind != "plain":
        real = torch.cat([torch.arange(width) < digits for width, (digits, _) in zip(widths, planes, strict=True)])
        index = torch.randint(0, channels - 8, (columns,), generator=generator, dtype=torch.int32)  # some have none
        place = torch.where(real, 4.0 ** torch.randint(-1, 2, (columns,), generator=generator), 0.0)
        index, place = index.to(device), place.to(device)
        offset = random(heads, channels, low=-1)
    z = random(batch * heads, rows, channels, low=-1, high=1).to(dtype)
    # keys of one group may be a view of several, and have channels without scales
    scale = random(batch, heads, groups + 1, channels, dtype=parameters)[:, :, :groups]
    scale = scale[..., : channels - 8] if kind != "plain" else scale
    zero_point = random(batch, heads, groups, channels, low=-1, dtype=parameters)
    levels = max(2**bits for _, bits in planes)
    scaling = 2 / (levels * math.sqrt(columns))
    return Query(z, scaling, scale, zero_point, index, place, offset)


def make_dense(batch, heads, rows, columns, dims, dtype, biased, room=5, device="cpu"):
    """Random columns in the model's dtype in views of longer buffers, poisoned behind ``columns``."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    key, value = (random(batch, heads, columns + room + 2, dim) for dim in dims)
    key[:, :, columns:] = value[:, :, columns:] = float("nan")
    bias = None
    if biased:
        bias = torch.where(torch.rand(batch, columns + room, generator=generator) < 0.3, -1e30, 0.0)
        bias[0, :20] = -1e30
        bias[:, columns:] = float("nan")
        bias = bias.to(device)
    length = torch.tensor([columns], dtype=torch.int32, device=device)
    query = random(batch * heads, rows, dims[0])
    scaling = LOG2_E / math.sqrt(dims[0])
    return DenseColumns(query, key[:, :, : columns + room], value[:, :, : columns + room], scaling, bias, length)


def dense_outputs(dense, splits, apart):
    rows, device = dense.query.shape[:2], dense.query.device
    width = aligned(dense.value.shape[-1])
    sizes = [(rows[0], splits, rows[1]), (rows[0], splits, rows[1]), (rows[0], splits, rows[1], width)]
    return DenseSplits(*(torch.full(size, float("nan"), device=device) for size in sizes), apart)


def check_dense(dense, out):
    """The splits of dense columns, joined, against float64."""
    columns = int(dense.length)
    key, value = (x[:, :, :columns].double().flatten(0, 1) for x in (dense.key, dense.value))
    x = dense.query.double() @ key.transpose(1, 2) * dense.scaling
    if dense.bias is not None:
        heads = dense.key.shape[1]
        x = x + dense.bias[:, :columns].double().repeat_interleave(heads, 0)[:, None] * LOG2_E
    live = x > -1e20
    m = torch.where(live, x, float("-inf")).amax(-1) if columns else x.new_full(x.shape[:2], float("-inf"))
    p = torch.where(live, x - m.clamp_min(-1e20)[..., None], float("-inf")).exp2()
    assert (out.m == float("-inf")).logical_or(out.l > 0).all() and out.l.isfinite().all()
    found = out.m.double().amax(1)
    torch.testing.assert_close(found, m, rtol=1e-5, atol=1e-5)
    weight = torch.where(out.l > 0, out.m.double() - m.clamp_min(-1e20)[:, None], float("-inf")).exp2()
    torch.testing.assert_close((out.l * weight).sum(1), p.sum(-1), rtol=1e-5, atol=1e-6)
    acc = (out.acc.double()[..., : value.shape[-1]] * weight[..., None]).sum(1)
    torch.testing.assert_close(acc, p @ value, rtol=1e-4, atol=2e-4)


def expanded(q8, qw, qz):
    """The query by digit ``[B, H, G, R, J]`` and what zero points add ``[B, H, G, R]``, float64."""
    if not isinstance(q8, Query):
        digits = (254 * q8[..., 0::2, :].double() + q8[..., 1::2, :].double()) * qw.double()[..., None]
        return digits, qz.double()
    z = q8.rows.double().unflatten(0, q8.scale.shape[:2]).unsqueeze(2) * q8.scaling
    scale, zero = q8.scale.double(), q8.zero_point.double()
    channels = z[..., : zero.shape[-1]]
    if q8.offset is not None:
        zero = zero + q8.offset.double()[:, None]
    if q8.lane_channel is None:
        digits = z[..., : scale.shape[-1]]
    else:
        digits = z[..., q8.lane_channel.long()]
        scale = scale[..., q8.lane_channel.long()] * q8.plane_weight.double()
    return digits * scale.unsqueeze(3), (channels * zero.unsqueeze(3)).sum(-1)


def reference(q8, qw, qz, keys, values, pages, splits, bias=None):
    """``split_digits`` in float64: ``m``, ``l``, ``acc`` and ``z`` of each split."""
    query, constant = expanded(q8, qw, qz)
    batch, heads, groups, rows, _ = query.shape
    page = keys.page_size

    def flat(codes, bits, dim):  # [B, H, tokens, J], padded to a multiple of 32
        x = unpack_planes(codes[:, :, :pages].contiguous(), bits, dim).double()
        x = x if dim == -2 else x.transpose(-1, -2)
        x = x.flatten(2, 3)
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 32))

    def group_of(group, count):
        if isinstance(group, str):
            return torch.arange(pages) if group == "page" and count > 1 else torch.zeros(pages, dtype=torch.long)
        return group[:pages].long().cpu() % count

    def per_token(x):
        return x[:, :, :pages].double().reshape(*x.shape[:2], 1, pages * page)

    key_codes = torch.cat([flat(codes, bits, -2) for codes, bits in keys.planes], -1)
    value_codes = torch.cat([flat(codes, bits, -1) for codes, bits in values.planes], -1)
    by_token = group_of(keys.group, groups).repeat_interleave(page).to(query.device)
    x = torch.einsum("bhtrj,bhtj->bhrt", query[:, :, by_token], key_codes) + constant[:, :, by_token].transpose(-1, -2)
    if keys.norm is not None:
        x = x * per_token(keys.norm)
    if bias is not None:
        x = x + bias[:, None, None, : pages * page].double() * LOG2_E
    weight = torch.ones(1, 1, 1, 1, dtype=torch.float64, device=query.device)
    if values.norm is not None:
        weight = per_token(values.norm)
    if values.axis == "token":
        weight = per_token(values.scale)
    zero_codes = None
    if values.scale is not None and values.axis == "channel" and values.scale.shape[2] > 1:
        group = group_of(values.group, values.scale.shape[2]).repeat_interleave(page).to(query.device)
        value_codes = value_codes * values.scale.double()[:, :, group]
        zero_codes = values.zero_point.double()[:, :, group]
    m = x.new_full((batch, heads, splits, rows), float("-inf"))
    l, z = torch.zeros_like(m), torch.zeros_like(m)
    acc = x.new_zeros(batch, heads, splits, rows, value_codes.shape[-1])
    if zero_codes is not None:
        z = x.new_zeros(batch, heads, splits, rows, zero_codes.shape[-1])

    def weight_of(tokens):
        return weight.expand(*weight.shape[:3], pages * page)[..., tokens]

    for s in range(splits):  # pages go to the splits in turn
        tokens = (torch.arange(pages * page, device=query.device) // page % splits == s).nonzero()[:, 0]
        if not len(tokens):
            continue
        part = x[..., tokens]
        m[:, :, s] = part.amax(-1)
        p = (part - m[:, :, s, :, None]).exp2()
        l[:, :, s] = p.sum(-1)
        acc[:, :, s] = (p * weight_of(tokens)) @ value_codes[:, :, tokens]
        if values.axis == "token":
            z[:, :, s] = (p * per_token(values.zero_point)[..., tokens]).sum(-1)
        elif zero_codes is not None:
            z[:, :, s] = (p * weight_of(tokens)) @ zero_codes[:, :, tokens]
        else:
            z[:, :, s] = (p * weight_of(tokens)).sum(-1)
    return [t.flatten(0, 1) for t in (m, l, acc, z)]


def check(outputs, expected, zero, folded=False):
    """``folded``: the kernel splits the query, in steps of 2 ** -15 of its largest number."""
    loose = 20 if folded else 1
    m, l, acc, z = (x.double() for x in expected)
    out_m, out_l, out_acc, out_z = (x.double() for x in outputs)
    empty = m < -1e20  # no pages, or only slots without a token
    l, acc, z = (
        l.masked_fill(empty, 0),
        acc.masked_fill(empty[..., None], 0),
        z.masked_fill(empty.reshape(*empty.shape, *[1] * (z.dim() - 3)), 0),
    )
    assert torch.equal(out_m == float("-inf"), empty)
    assert (out_l[empty] == 0).all() and (out_acc[empty] == 0).all()
    # relative to 2 ** m: an error of the largest logit is one of all sums
    torch.testing.assert_close(out_m[~empty], m[~empty], rtol=2e-6 * loose, atol=2e-5 * loose)
    torch.testing.assert_close(out_l, l, rtol=1e-4 * loose, atol=1e-5 * loose)
    assert ((out_acc - acc).norm() <= 5e-5 * loose * acc.norm()).item()
    torch.testing.assert_close(out_acc, acc, rtol=1e-3 * loose, atol=1e-4 * loose * acc.abs().max().item())
    if zero:
        torch.testing.assert_close(out_z, z, rtol=1e-4 * loose, atol=1e-4 * loose * z.abs().max().item())


def has_zero(values):
    """Whether the kernel writes sums for the zero points."""
    return values.axis == "token" or values.norm is not None or values.scale is not None


def outputs_of(q8, keys, values, splits):
    batch, heads = keys.planes[0][0].shape[:2]
    device = keys.planes[0][0].device
    shape = (batch * heads, splits, rows_of(q8))
    width = values.width
    grouped = values.axis == "channel" and values.scale is not None
    sizes = [shape, shape, (*shape, width), (*shape, values.zero_point.shape[-1]) if grouped else shape]
    return [torch.full(size, float("nan"), dtype=torch.float32, device=device) for size in sizes]


def library_of(variant, path):
    """``attention.cu`` for a CPU, compiled to ``path``; it ends the process where lanes race."""
    compiler = shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        pytest.skip("needs g++ on Linux")
    source = Path(__file__).with_name("warps_on_a_cpu.cpp")
    folder = path.with_suffix(".headers")
    folder.mkdir(exist_ok=True)
    (folder / cuda.HEADER).write_text(header_text(variant))
    flags = ["-O1", "-w", "-std=c++17", "-fno-strict-aliasing", "-fPIC", f'-DSOURCE="{cuda._SOURCE}"']
    flags += ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]  # but not linked to its library
    compiled = path.with_suffix(".o")
    subprocess.run([compiler, *flags, "-I", folder, "-c", "-o", compiled, source], check=True)
    subprocess.run([compiler, "-shared", "-o", path, compiled], check=True)
    return ctypes.CDLL(str(path))


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
    cuda.split_digits(q8, qw, qz, keys, values, *outputs[:3], num_pages=used, bias=bias, out_z=outputs[3])
    check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(values), qw is None)


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
        ("gathered and folded", 2, 1),
        ("page folded", 2, 2),
        ("map folded, 7 rows", 1, 1),
        ("map folded, float32", 2, 1),
    ],
)
def test_matches_reference_on_a_cpu(name, warps, stages, tmp_path):
    """The same source, a lane at a time: which bits and bytes go where needs no GPU."""
    pages, splits = 5, 2
    q8, qw, qz, keys, values, bias = make(name, batch=1, pages=pages)
    variant = replace(variant_of(q8, keys, values, bias), warps=warps, stages=stages)
    assert variant.dense == 0
    library = library_of(variant, tmp_path / "digits.so")
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32)
    arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3])
    grid = grid_of(q8, keys, variant, splits)
    library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
    check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(values), qw is None)


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
    digits = torch.tensor(real)[torch.randint(0, len(real), (3, 72), generator=generator)].int()
    places = 4.0 ** torch.randint(-1, 2, (3, 72), generator=generator)
    expected = reference(q8, qw, qz, keys, values, pages, splits, bias)
    expected[2] = (expected[2][..., digits.long()] * places).sum(-2)
    values = replace(values, channels=(digits, places))
    variant = replace(variant_of(q8, keys, values, bias), warps=2, stages=1)
    library = library_of(variant, tmp_path / "digits.so")
    outputs = outputs_of(q8, keys, values, splits)
    used = torch.tensor([pages], dtype=torch.int32)
    arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3])
    library.launch(ctypes.byref(arguments), *grid_of(q8, keys, variant, splits), variant.shared_bytes)
    check(outputs, expected, has_zero(values))


# name: case, dims of keys and values, dtype, splits of dense columns, apart
DENSE_CASES = {
    "bf16": ("span folded", (128, 128), torch.bfloat16, 2, False),
    "fp16, 12 rows": ("12 rows", (64, 64), HALF, 1, False),
    "7 rows apart": ("7 rows", (128, 96), torch.bfloat16, 2, True),
    "80 channels": ("two planes", (80, 80), torch.bfloat16, 1, True),
    "256 channels": ("256 channels, 8 rows", (256, 256), torch.bfloat16, 1, False),
    "pages of 64": ("map folded, float32", (96, 64), HALF, 2, False),
    "4 pages of 64": ("pages of 64", (128, 256), torch.bfloat16, 2, True),
}


@needs_gpu
@pytest.mark.parametrize("columns", [0, 1, 15, 132, 700])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", DENSE_CASES)
def test_dense_columns(name, columns, biased):
    case, dims, dtype, count, apart = DENSE_CASES[name]
    q8, qw, qz, keys, values, bias = make(case, pages=9, device="cuda", capacity=12)
    dense = make_dense(2, 2, rows_of(q8), columns, dims, dtype, biased, device="cuda")
    assert cuda.choose(q8, keys, values, bias, dense) is not None
    outputs, dense_out = outputs_of(q8, keys, values, 3), dense_outputs(dense, count, apart)
    used = torch.tensor([9], dtype=torch.int32, device="cuda")
    cuda.split_digits(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3], dense=dense, dense_out=dense_out)
    check(outputs, reference(q8, qw, qz, keys, values, 9, 3, bias), has_zero(values), qw is None)
    check_dense(dense, dense_out)


@pytest.mark.parametrize("name", DENSE_CASES)
def test_dense_columns_on_a_cpu(name, tmp_path):
    case, dims, dtype, count, apart = DENSE_CASES[name]
    pages, splits = 5, 2
    q8, qw, qz, keys, values, bias = make(case, batch=2, heads=1, pages=pages)
    library = None
    for columns, biased in ((70, False), (37, True), (0, False), (1, False)):
        dense = make_dense(2, 1, rows_of(q8), columns, dims, dtype, biased)
        variant = replace(variant_of(q8, keys, values, bias, dense), warps=3, stages=1)
        library = library or library_of(variant, tmp_path / "digits.so")
        outputs, dense_out = outputs_of(q8, keys, values, splits), dense_outputs(dense, count, apart)
        used = torch.tensor([pages], dtype=torch.int32)
        arguments = arguments_of(q8, qw, qz, keys, values, *outputs[:3], used, bias, outputs[3], dense, dense_out)
        grid = grid_of(q8, keys, variant, splits, dense_out)
        library.launch(ctypes.byref(arguments), *grid, variant.shared_bytes)
        check(outputs, reference(q8, qw, qz, keys, values, pages, splits, bias), has_zero(values), qw is None)
        check_dense(dense, dense_out)


@pytest.mark.parametrize(
    ("units", "columns", "splits", "expected"),
    [(8, 132, 32, (1, True)), (8, 132, 8, (2, True)), (256, 132, 1, (1, False)), (32, 700, 8, (6, False))],
)
def test_best_dense_splits(units, columns, splits, expected):
    assert best_dense_splits(units, columns, slots=264, warps=8, splits=splits) == expected


@needs_gpu
def test_replays_in_a_graph():
    q8, qw, qz, keys, values, _ = make("2 bits", pages=20, capacity=24, device="cuda")
    outputs = outputs_of(q8, keys, values, 3)
    used = torch.tensor([20], dtype=torch.int32, device="cuda")

    def step():
        cuda.split_digits(q8, qw, qz, keys, values, *outputs[:3], num_pages=used)

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


@pytest.mark.parametrize("name", DENSE_CASES)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_compiles_with_dense_columns(name, capability):
    if nvrtc.nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    case, dims, dtype, _, _ = DENSE_CASES[name]
    q8, _, _, keys, values, bias = make(case)
    dense = make_dense(2, 2, rows_of(q8), 40, dims, dtype, False)
    check_compiles(variant_of(q8, keys, values, bias, dense), capability)


def check_compiles(variant, capability):
    block, total = {(8, 0): (163, 164), (8, 9): (99, 100), (9, 0): (227, 228)}[capability]
    variant = variant.fitted(block * 1024, total * 1024)
    assert variant is not None
    assert variant.blocks * (variant.shared_bytes + 1024) <= total * 1024
    headers = {cuda.HEADER: header_text(variant).encode()}
    # the program has to be new all the way down: from the caches on disk there is no log
    fresh = cuda._SOURCE.read_bytes() + f'\nextern "C" __device__ int unique_{uuid.uuid4().hex};\n'.encode()
    program, log = nvrtc.compile_source(fresh, "attention.cu", headers, capability)
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
    assert variant_of(q8, DigitKeys(**(fields | change)), values) is None


def test_not_on_a_cpu():
    q8, qw, qz, keys, values, _ = make("2 bits")
    assert not cuda.supports(q8, keys, values)
    with pytest.raises(KVMMError, match="Triton"):
        cuda.split_digits(q8, qw, qz, keys, values, *outputs_of(q8, keys, values, 1)[:3])


@pytest.mark.parametrize(
    ("units", "pages", "columns", "expected"),
    [(8, 1024, 0, 32), (8, 1023, 0, 33), (8, 1023, 128, 32), (256, 63, 128, 1), (8, 1, 128, 1), (1, 8, 0, 1)],
)
def test_best_splits(units, pages, columns, expected):
    """Where a block is left for the dense columns, no block with pages has to take them besides."""
    assert best_splits(units, pages, slots=264, warps=8, columns=columns) == expected
