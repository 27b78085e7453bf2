"""Random cases for the CUDA split kernel: its arguments, room for its outputs, and its source built for a CPU."""

import ctypes
import math
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda.arguments import ARGUMENTS, header_text
from kvmm.kernels.attention.backends.cuda.inputs import (
    KeyPlanes,
    Query,
    ResidualInputs,
    ResidualSplits,
    ValuePlanes,
    rows_of,
)
from kvmm.kernels.attention.bit_lanes import bit_layout
from kvmm.kernels.attention.format import aligned
from kvmm.kernels.quantize.reference import pack_planes
from tests.kernels.cuda_case_table import CASES, HALF, RESIDUAL_CASES
from tests.kernels.cuda_reference import LOG2_E

__all__ = ["CASES", "RESIDUAL_CASES"]


def make(name, batch=2, heads=2, pages=5, capacity=8, device="cpu", seed=0):
    """A random case: arguments of ``split_kernel`` except outputs, on views of buffers with spare capacity."""
    page, rows, key_planes, value_planes, options = CASES[name]
    heads = max(heads, options.get("together", 1))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, low=0.5, high=2.0, dtype=torch.float32):
        return (torch.rand(*shape, generator=generator) * (high - low) + low).to(dtype).to(device)

    def stored(x):  # poison behind the pages
        spare = torch.full((*x.shape[:2], capacity - pages, *x.shape[3:]), 255).to(x.dtype).to(device)
        if x.is_floating_point():
            spare.fill_(float("nan"))
        return torch.cat([x, spare], 2)

    def codes(lanes, bits, transposed):
        x = torch.randint(0, 2**bits, (batch, heads, pages, page, lanes), generator=generator, dtype=torch.uint8)
        x = x.transpose(-1, -2).contiguous() if transposed else x
        return stored(pack_planes(x.to(device), bits, -1 if transposed else -2))

    parts, bits_apart = options.get("parts", 1), options.get("query", ("", ""))[1] == "bits"

    def grouping(kind):
        if kind == "page":
            return kind, capacity
        if kind == "map":
            return (torch.arange(capacity, dtype=torch.int32) % 5 - 2).to(device), 3
        return "span", 1

    width = sum(aligned(lanes) for lanes, _ in key_planes)
    group, groups = grouping(options.get("group"))
    q8 = torch.randint(-127, 128, (batch, heads, groups, 2 * rows, width), generator=generator, dtype=torch.int8)
    start = 0
    for lanes, _ in key_planes:
        q8[..., start + lanes : start + aligned(lanes)] = 0
        start += aligned(lanes)
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
    together, chunks = options.get("together", 1), options.get("chunks", 1)
    by_token = (batch, heads // together, pages, chunks * page)
    keys = KeyPlanes(
        planes=tuple((codes(lanes, bits, False)[:, : heads // together], bits) for lanes, bits in key_planes),
        chunks=chunks,
        heads_together=together,
        page_size=page,
        group=group,
        groups_in_page=parts,
        norm=None if norm is None else stored(random(*by_token, dtype=norm)),
        bit_lanes=bits_apart,
        channels=q8.zero_point.shape[-1] if options.get("query", ("", ""))[1] == "digits" else None,
        high_norm=stored(random(*by_token, low=0.1, high=4, dtype=norm)) if options.get("high_norm") else None,
        kept_slot=slots_to_keep(options.get("kept"), (batch, heads, pages * page), generator, device),
        point=stored(random(*by_token, low=-1, dtype=norm)) if options.get("point") else None,
    )
    values = make_values(value_planes, options, (batch, heads, pages, page), (codes, stored, random, grouping))
    bias = None
    if options.get("bias"):
        odd = bool(options.get("odd_bias"))
        bias = torch.zeros(batch, capacity * page + odd)
        bias[torch.rand(bias.shape, generator=generator) < 0.3] = -1e30
        bias[:, : 2 * page] = -1e30  # whole pages without a token
        bias = bias.to(device)[:, odd:]
    return q8 if qw is None else q8.to(device), qw, qz, keys, values, bias


def make_values(value_planes, options, sizes, makers):
    """Random values; ``makers`` are functions of :func:`make`."""
    (batch, heads, pages, page), (codes, stored, random, grouping) = sizes, makers
    value_group, value_groups = grouping(options.get("value_group"))
    kind = options.get("query", ("", ""))[1]
    bits_apart = kind == "bits"
    token, norm = options.get("token"), options.get("value_norm")
    scale = zero_point = None
    value_width = sum(aligned(lanes) for lanes, _ in value_planes)
    if token is not None:
        count = options.get("token_parts", 1)
        scale = stored(random(batch, heads, pages, count, page, dtype=token))
        zero_point = stored(random(batch, heads, pages, count, page, low=-1, dtype=token))
    elif value_groups > 1:
        scale = random(batch, heads, value_groups, value_width)
        zero_point = random(batch, heads, value_groups, 64, low=-1)
    high_norm = None
    if options.get("high_norm") is True:
        high_norm = stored(random(batch, heads, pages, page, low=0.1, high=4, dtype=norm))
        scale, zero_point = (
            random(1, 1, 1, value_planes[0][0], low=low).expand(batch, heads, -1, -1) for low in (0.5, -1)
        )
    return ValuePlanes(
        planes=tuple((codes(lanes, bits, True), bits) for lanes, bits in value_planes),
        axis="channel" if token is None else "token",
        scale=scale,
        zero_point=zero_point,
        group=value_group,
        # one norm for all heads
        norm=None if norm is None else stored(random(batch, 1, pages, page, dtype=norm)).expand(-1, heads, -1, -1),
        has_plane_weights=kind == "digits",
        bit_weights=weights_of_bits(value_planes) if bits_apart else None,
        high_norm=high_norm,
    )


def slots_to_keep(count, sizes, generator, device):
    """Slots in order, the last two the same."""
    if count is None:
        return None
    slots = torch.rand(sizes, generator=generator).argsort(-1)[..., :count].sort(-1).values.int()
    slots[..., -2] = slots[..., -1]
    return slots.to(device)


def weights_of_bits(planes):
    """Weights of bits for two bits of every code and a third one of some."""
    longer, rest = (0.7, 1.3, 2.9, 0.4), (0.6, 1.7)
    return (rest,) if len(planes) == 1 else (longer,) if planes[0][0] == planes[1][0] else (longer, rest)


def make_query(planes, sizes, options, random, generator, device):
    """A random ``Query``; by kind: ``plain``, digit ``j`` is channel ``j``; ``picked``, digits are channels of any
    order, with places and offsets; ``digits``, digits of 4 bits, 2 and, in the second plane, 1 of no more than 256
    channels."""
    batch, heads, groups, rows = sizes
    dtype, kind, parameters = (*options["query"], HALF)[:3]
    widths = [aligned(lanes) for lanes, _ in planes]
    columns, channels = sum(widths), sum(lanes for lanes, _ in planes) - (kind == "picked") * 8
    index = place = offset = None
    if kind == "gathered":
        channels = planes[0][0]
    if kind == "digits":
        (two_bits, _), (one_bit, _) = planes
        channels = min(256, two_bits + one_bit)
        low = channels - one_bit
        index = [*range(low), *range(two_bits - low), *[0] * (widths[0] - two_bits)]
        index += [*range(low, channels), *[0] * (widths[1] - one_bit)]
        place = [1.0] * low + [4.0] * (two_bits - low) + [0.0] * (widths[0] - two_bits)
        place += [1.0] * one_bit + [0.0] * (widths[1] - one_bit)
        index, place = torch.tensor(index, dtype=torch.int32, device=device), torch.tensor(place, device=device)
    if kind == "bits":
        channels = planes[0][0]
        index, place = bit_layout(tuple(lanes for lanes, _ in planes), weights_of_bits(planes), torch.device(device))
    if kind == "picked":
        real = torch.cat([torch.arange(width) < lanes for width, (lanes, _) in zip(widths, planes, strict=True)])
        index = torch.randint(0, channels - 8, (columns,), generator=generator, dtype=torch.int32)  # some have none
        place = torch.where(real, 4.0 ** torch.randint(-1, 2, (columns,), generator=generator), 0.0)
        index, place = index.to(device), place.to(device)
        offset = random(heads, channels, low=-1)
    z = random(batch * heads, rows, channels, low=-1, high=1).to(dtype)
    if options.get("point"):  # as a transform to padded lanes leaves it
        z = torch.nn.functional.pad(z, (0, columns - channels)).contiguous()
    # keys of one group may be a view of several, and have channels without scales
    stored = channels * options.get("parts", 1)
    scale = random(batch, heads, groups + 1, stored, dtype=parameters)[:, :, :groups]
    scale = scale[..., : channels - 8] if kind == "picked" else scale
    zero_point = random(batch, heads, groups, stored, low=-1, dtype=parameters)
    levels = max(2**bits for _, bits in planes)
    scaling = 2 / (levels * math.sqrt(columns))
    mean = options.get("mean")
    if mean is not None:
        mean = random(batch, heads, groups, channels, low=-1, dtype=mean)
        scale, zero_point = scale[:, :, :1], zero_point[:, :, :1]
    if options.get("point"):
        scale = zero_point = None
    group_channel = None
    if kind == "gathered":
        group_channel = torch.rand(batch, heads, groups, channels, generator=generator).argsort(-1)
        group_channel = group_channel[..., : planes[1][0]].sort(-1).values.to(torch.uint8).to(device)
    order = None
    if options.get("together"):
        order = torch.rand(batch, heads // options["together"], 1, columns, generator=generator).argsort(-1)
        order = order.to(torch.int16).view(batch, heads, 1, -1).to(device)
    return Query(z, scaling, scale, zero_point, index, place, offset, mean, group_channel, order)


def make_residual(batch, heads, rows, columns, dims, dtype, biased, room=5, device="cpu"):
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
    return ResidualInputs(query, key[:, :, : columns + room], value[:, :, : columns + room], scaling, bias, length)


def residual_outputs(residual, splits, apart):
    rows, device = residual.query.shape[:2], residual.query.device
    width = aligned(residual.value.shape[-1])
    sizes = [(rows[0], splits, rows[1]), (rows[0], splits, rows[1]), (rows[0], splits, rows[1], width)]
    return ResidualSplits(*(torch.full(size, float("nan"), device=device) for size in sizes), apart)


def outputs_of(q8, keys, values, splits):
    batch, heads = keys.planes[0][0].shape[:2]
    heads *= keys.heads_together
    device = keys.planes[0][0].device
    shape = (batch * heads, splits, rows_of(q8))
    width = values.width
    grouped = values.axis == "channel" and values.scale is not None and values.high_norm is None
    sizes = [shape, shape, (*shape, width), (*shape, values.zero_point.shape[-1]) if grouped else shape]
    return [torch.full(size, float("nan"), dtype=torch.float32, device=device) for size in sizes]


_RUNNER = Path(__file__).with_name("warps_on_a_cpu.cpp")
# with calls of the thread sanitizer, but not linked to its library
_FLAGS = ["-O1", "-w", "-std=c++17", "-fno-strict-aliasing", "-fPIC"]
_FLAGS += ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]


@cache
def _standard_headers(compiler):
    """What the runner includes of the standard library, compiled once for all variants; held by the folder returned."""
    folder = tempfile.TemporaryDirectory(prefix="kvmm-headers-")
    header = Path(folder.name, "standard.hpp")
    lines = [line for line in _RUNNER.read_text().splitlines() if line.startswith("#include <")]
    header.write_text("\n".join(lines) + "\n")
    subprocess.run([compiler, *_FLAGS, "-x", "c++-header", "-o", f"{header}.gch", header], check=True)
    return folder


def library_of(variant, path, source=cuda._SOURCE, arguments=ARGUMENTS):
    """A kernel's source for a CPU, compiled to ``path``; it ends the process where lanes race."""
    compiler = shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        pytest.skip("needs g++ on Linux")
    folder = path.with_suffix(".headers")
    folder.mkdir(exist_ok=True)
    (folder / cuda.HEADER).write_text(header_text(variant, arguments))
    standard = Path(_standard_headers(compiler).name, "standard.hpp")
    flags = [*_FLAGS, f'-DSOURCE="{source}"', "-include", standard, "-I", folder]
    compiled = path.with_suffix(".o")
    subprocess.run([compiler, *flags, "-c", "-o", compiled, _RUNNER], check=True)
    subprocess.run([compiler, "-shared", "-o", path, compiled], check=True)
    return ctypes.CDLL(str(path))
