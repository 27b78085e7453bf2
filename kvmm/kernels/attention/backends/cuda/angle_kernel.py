"""Splits of one segment of angle codes and exact values in CUDA C++ (``angle_attention.cu``), for NVIDIA GPUs.

As :mod:`kvmm.kernels.attention.backends.cuda.kernel`, an optional fast path, compiled by NVRTC for each case when it is
first asked for. A query meets the codes in the same pass that reads the values: nothing is written between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from kvmm.kernels.angle.format import LENGTHS, AngleFormat
from kvmm.kernels.attention.backends.cuda import nvrtc
from kvmm.kernels.attention.backends.cuda import splits as cuda_splits
from kvmm.kernels.attention.backends.cuda.arguments import (
    PAGED,
    header_text,
    paged,
    pointer_to,
    residual_arguments,
    residual_members,
)
from kvmm.kernels.attention.backends.cuda.compiled import Compiled, macro, rounded
from kvmm.kernels.attention.backends.cuda.inputs import ResidualInputs, ResidualSplits
from kvmm.kernels.attention.backends.cuda.kernel import (
    HEADER,
    available,
    function_of,
    multiprocessors,
    shared_memory,
    source_of,
    supports_pdl,
)
from kvmm.kernels.attention.backends.cuda.variant import (
    QUERY_TYPES,
    RESIDUAL_TYPES,
    TYPES,
    laid_out,
    residual_fits,
)
from kvmm.kernels.attention.backends.triton.call import DecodeCall, Partial
from kvmm.kernels.attention.format import DenseFormat, aligned
from kvmm.kernels.attention.structs import FLOAT, INT, LONG_LONG, Member, Struct, pointer

SOURCE = "angle_attention.cu"
PAGE_SIZES = (32, 64, 128)
# (warps a block, stages, blocks a multiprocessor), best first, as measured on an H200; where there are more blocks than
# multiprocessors, several of them share one, of which one begins while others are at their pages
PLANS = ((8, 5, 1), (8, 4, 1), (8, 3, 1), (8, 2, 1), (4, 3, 1), (4, 2, 1), (2, 2, 1), (1, 2, 1))
SHARING_PLANS = ((6, 3, 2), (4, 4, 2), (4, 3, 2))
_JOINED = 32  # channels of residual tokens that a block's warps join at a time


@dataclass(frozen=True)
class AngleVariant(Compiled):
    """What ``angle_attention.cu`` has to know to be compiled."""

    page: int = macro("tokens a page")
    row_tiles: int = macro("tiles of four query rows that a block takes")
    groups: int = macro("groups of channels that a key has codewords for")
    index_bits: int = macro("bits of a codeword's index, or of an angle's")
    key_scale: int = macro("scales of lengths: 1: float16, 2: float32")
    key_mean: int = macro("means: 1: float16, 2: float32")
    query_type: int = macro("1: float16, 2: float32, 3: bfloat16")
    residual: int = macro("values and residual tokens: 1: float16, 3: bfloat16")
    residual_key_dim: int = macro("channels of keys")
    residual_value_dim: int = macro("channels of values")
    angles: int = macro("recursive angles of a key, 0: directions are codewords", default=0)
    bias: bool = macro("whether logits have a bias", default=False)
    residual_tokens: bool = macro("whether residual tokens are read as well", default=False)
    warps: int = macro("warps a block", default=8)
    stages: int = macro("tiles of values that a warp has under way", default=3)
    blocks: int = macro("blocks a multiprocessor", default=2)

    @cached_property
    def warp_bytes(self) -> int:
        """Shared memory of a warp: tiles of values and probabilities, at the end its sums."""
        chunks = self.residual_value_dim // 8
        tile = 16 * 16 * (chunks if chunks % 8 == 0 else chunks | 1)
        under_way = self.stages * tile + 16 * self.row_tiles * (_JOINED + 8)
        if self.angles:  # a page's codes, read a word too far
            under_way += self.page * self.index_bits // 8 * self.angles + 16
        return rounded(max(under_way, 16 * self.row_tiles * (self.residual_value_dim + 8)), 128)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        rows = 4 * self.row_tiles
        found = 2 * self.warps * rows * 4 + rows * self.residual_key_dim * 4
        entries = self.residual_key_dim if self.angles else self.groups << self.index_bits
        levels = 8 * self.angles << self.index_bits
        return self.warps * self.warp_bytes + found + 16 * self.row_tiles * entries + levels

    def fitted(self, shared_block: int, shared_total: int, units: float = 0.0) -> AngleVariant | None:
        """The variant with as many warps and stages as a multiprocessor's shared memory allows.

        Args:
            shared_block, shared_total: bytes that a block may ask for and that a multiprocessor has.
            units: blocks of one split for every multiprocessor.
        """
        most = 12 if self.row_tiles == 1 and self.residual_value_dim <= 128 else 8  # warps, of as many registers
        for warps, stages, blocks in (*(SHARING_PLANS if units > 1 else ()), *PLANS):
            fitted = replace(self, warps=warps, stages=stages, blocks=blocks)
            block = fitted.shared_bytes
            whole_pages = not self.angles or stages < self.page // 16  # codes come with a page's tiles
            if (
                warps * blocks <= most
                and whole_pages
                and block <= shared_block
                and blocks * (block + 1024) <= shared_total
            ):
                return fitted
        return None


ARGUMENTS = Struct(
    "Arguments",
    (
        Member("query", pointer("const Byte"), "[B, H, rows, RESIDUAL_KEY_DIM] of QUERY_TYPE"),
        Member("codes", PAGED, "planes of bits [PAGE * INDEX_BITS / 8, GROUPS or ANGLES]"),
        Member("radius", PAGED, "bytes [PAGE, GROUPS]"),
        Member("scale", PAGED),
        Member("mean", PAGED, "a page is a group of pages"),
        Member("values", PAGED, "[PAGE, RESIDUAL_VALUE_DIM]"),
        Member(
            "codebook",
            pointer("const float"),
            "[H or 1, GROUPS or 1, 1 << INDEX_BITS, channels of a group], or of ANGLES [ANGLES, 1 << INDEX_BITS, 2]",
        ),
        Member("codebook_head", LONG_LONG, "floats, 0: the same for all heads"),
        Member("codebook_group", LONG_LONG),
        Member("bias", pointer("const float"), "[B, slots]"),
        Member("bias_batch", LONG_LONG),
        Member("num_pages", pointer("const int"), "pages in use, or null: all"),
        Member("page_group", pointer("const int"), "[pages]"),
        Member("out_m", pointer("float"), "[B, H, splits, rows]"),
        Member("out_l", pointer("float")),
        Member("out_acc", pointer("float"), "[B, H, splits, rows, RESIDUAL_VALUE_DIM]"),
        *residual_members(),
        *(Member(name, INT) for name in ("pages", "heads", "rows", "num_kv_splits", "mean_groups")),
        Member("scaling", FLOAT),
        Member("length_step", FLOAT, "of lengths whose scale is one"),
    ),
    "What a launch hands the kernel.",
)
Arguments = ARGUMENTS.ctype


def variant_of(
    query: torch.Tensor,
    keys: AngleFormat,
    values: DenseFormat,
    bias: torch.Tensor | None,
    residual: ResidualInputs | None,
) -> AngleVariant | None:
    """The variant of a case, without warps and stages, or None if there is none.

    Args:
        query: ``[B * H, rows, D]``, contiguous.
        keys, values: of one segment.
        bias: float32 ``[B, slots]`` or None.
        residual: residual tokens in the dtype of values, or None.
    """
    batch, heads, pages, size, dim = values.values.shape
    if size not in PAGE_SIZES or (keys.page_size, keys.pages) != (size, pages):
        return None
    if not keys.fits(batch, heads, query.shape[-1]) or query.shape[0] != batch * heads:
        return None
    if query.dtype not in QUERY_TYPES or values.values.dtype not in RESIDUAL_TYPES or dim % 16 or dim > 256:
        return None
    if keys.scale.dtype not in TYPES or keys.mean.dtype not in TYPES or keys.mean.stride(-1) != 1:
        return None
    if not (laid_out(values.values, inner=2) and keys.codebook.is_contiguous()):
        return None
    if not (_rows_aligned(keys.radius) and _codes_aligned(keys)):
        return None
    if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
        return None
    if residual is not None and not (residual_fits(residual) and residual.key.dtype == values.values.dtype):
        return None
    return AngleVariant(
        page=size,
        row_tiles=1 if query.shape[1] <= 4 else 2,
        groups=keys.groups,
        index_bits=keys.index_bits,
        angles=keys.angles,
        key_scale=TYPES[keys.scale.dtype],
        key_mean=TYPES[keys.mean.dtype],
        query_type=QUERY_TYPES[query.dtype],
        residual=RESIDUAL_TYPES[values.values.dtype],
        residual_key_dim=query.shape[-1],
        residual_value_dim=dim,
        bias=bias is not None,
        residual_tokens=residual is not None,
    )


def _rows_aligned(x: torch.Tensor) -> bool:
    """Whether pages of bytes are contiguous and aligned to what the kernel reads at once of a row of groups."""
    groups = x.shape[-1]
    at_once = min(8, groups & -groups)
    return x[0, 0, 0].is_contiguous() and not any(n % at_once for n in (x.data_ptr(), *x.stride()[:3]))


def _codes_aligned(keys: AngleFormat) -> bool:
    """Whether codes are as the kernel reads them; those of recursive angles a page at a time, 16 bytes at once."""
    if not keys.recursive:
        return _rows_aligned(keys.codes)
    return laid_out(keys.codes, inner=2) and keys.page_size * keys.index_bits // 8 * keys.angles % 16 == 0


@lru_cache(maxsize=256)
def _fitted(variant: AngleVariant, device: torch.device, units: int) -> AngleVariant | None:
    return variant.fitted(*shared_memory(device), units / multiprocessors(device))


def choose(
    query: torch.Tensor,
    keys: AngleFormat,
    values: DenseFormat,
    bias: torch.Tensor | None,
    residual: ResidualInputs | None,
) -> AngleVariant | None:
    """The variant that takes this case on this device, or None. Arguments as for :func:`variant_of`."""
    if not available(query.device):
        return None
    variant = variant_of(query, keys, values, bias, residual)
    return None if variant is None else _fitted(variant, query.device, units_of(variant, *query.shape[:2]))


def arguments_of(
    query: torch.Tensor,
    scaling: float,
    keys: AngleFormat,
    values: DenseFormat,
    out: Partial,
    num_pages: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: ResidualInputs | None,
    residual_out: ResidualSplits | None,
) -> Any:
    """What a launch hands the kernel; ``scaling`` as in :class:`DecodeCall`, the rest as for :func:`variant_of`."""
    book = keys.codebook
    return Arguments(
        query=query.data_ptr(),
        codes=paged(keys.codes),
        radius=paged(keys.radius),
        scale=paged(keys.scale),
        mean=paged(keys.mean),
        values=paged(values.values),
        codebook=book.data_ptr(),
        codebook_head=0 if book.shape[0] == 1 else book.stride(0),
        codebook_group=0 if book.shape[1] == 1 else book.stride(1),
        bias=pointer_to(bias),
        bias_batch=0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        num_pages=pointer_to(num_pages),
        page_group=keys.page_group.data_ptr(),
        out_m=out.m.data_ptr(),
        out_l=out.l.data_ptr(),
        out_acc=out.acc.data_ptr(),
        **residual_arguments(residual, residual_out, out.m.shape[1]),
        pages=keys.pages,
        heads=keys.codes.shape[1],
        rows=query.shape[1],
        num_kv_splits=out.m.shape[1],
        mean_groups=keys.mean.shape[2],
        scaling=scaling,
        length_step=keys.gain / LENGTHS,
    )


def units_of(variant: AngleVariant, heads: int, rows: int) -> int:
    """Blocks of one split, of the heads of all sequences."""
    return heads * -(-rows // (4 * variant.row_tiles))


def grid_of(variant: AngleVariant, rows: int, batch: int, heads: int, splits: int) -> tuple[int, int, int]:
    """Blocks of a launch: what a block takes of a head's rows times splits, heads, sequences."""
    return splits * -(-rows // (4 * variant.row_tiles)), heads, batch


def angle_split(
    call: DecodeCall,
    keys: AngleFormat,
    values: DenseFormat,
    pages_in_use: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: ResidualInputs | None,
) -> Partial | None:
    """The splits of a segment, and of residual tokens if the kernel reads them; None without a variant.

    Args:
        pages_in_use: int32 ``[1]`` on the device, or None for all.
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` or None.
        residual: residual tokens that may be read as well, or None.
    """
    if bias is not None and bias.shape[2] > 1:
        return None
    batch = call.bh // call.num_kv_heads
    bias = None if bias is None else bias[:, 0, 0].expand(batch, -1)
    variant = None if residual is None else choose(call.query, keys, values, bias, residual)
    if variant is None:
        residual, variant = None, choose(call.query, keys, values, bias, None)
    if variant is None:
        return None
    dim = values.values.shape[-1]
    units = units_of(variant, call.bh, call.rows)
    slots = multiprocessors(call.query.device) * variant.blocks
    tokens = 0 if residual is None else residual.key.shape[2]
    splits = cuda_splits.best_splits(units, keys.pages, slots, variant.warps, tokens)
    shape = (call.bh, splits, call.rows)
    out = Partial(call.empty(*shape), call.empty(*shape), call.empty(*shape, dim))
    residual_out, blocks = None, splits
    if residual is not None:
        count, apart = cuda_splits.best_residual_splits(units, tokens, slots, variant.warps, splits)
        shape = (call.bh, count, call.rows)
        out.residual = Partial(call.empty(*shape), call.empty(*shape), call.empty(*shape, aligned(dim)))
        residual_out = ResidualSplits(out.residual.m, out.residual.l, out.residual.acc, apart)
        blocks += count * apart
    launch(
        variant,
        grid_of(variant, call.rows, batch, call.num_kv_heads, blocks),
        arguments_of(call.query, call.scaling, keys, values, out, pages_in_use, bias, residual, residual_out),
        call.query.device,
    )
    out.launch_dependents = supports_pdl(call.query.device)
    return out


def launch(variant: AngleVariant, grid: tuple[int, int, int], arguments: Any, device: torch.device) -> None:
    """Launch the kernel on the current stream of a device."""
    function = function_of(variant, device.index, compile_variant)
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        nvrtc.launch(function, grid, 32 * variant.warps, variant.shared_bytes, stream, arguments)


def compile_variant(variant: AngleVariant, capability: tuple[int, int]) -> tuple[bytes, str]:
    """The program for a GPU and the compiler's log; see :func:`kvmm.kernels.attention.backends.cuda.nvrtc`."""
    headers = {HEADER: header_text(variant, ARGUMENTS).encode()}
    headers |= {name: source_of(name) for name in ("device.cuh", "dense_columns.cuh")}
    return nvrtc.compile_source(source_of(SOURCE), SOURCE, headers, capability)
