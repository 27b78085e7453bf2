"""What the CUDA split kernel (``attention.cu``) is compiled for: the variant of a case, and how it fits a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from kvmm.kernels.attention.backends.cuda.compiled import Compiled, macro, rounded
from kvmm.kernels.attention.backends.cuda.inputs import (
    KeyPlanes,
    Plane,
    Query,
    ResidualInputs,
    ValuePlanes,
    padded_lanes,
    rows_of,
)
from kvmm.kernels.attention.format import aligned

PAGE_SIZES = (64, 128)
KEPT_IN_REGISTERS = 128  # slots of a head that are left out; more are looked up for every page
MAX_PARTS = 8  # groups of tokens in a page, or of channels of a token
# Sums of keys fit 31 bits: 254 * high + low is at most 127 * 255, a code at the place where it is stored less than 256,
# and 127 * 255 * 256 * 256 < 2 ** 31. Where the lanes of a channel are the digits of its code, all of them together are
# less than 256 steps of the highest one, which the query's largest number bounds. Where they are its bits, a channel of
# two counts 3 steps of the byte's lowest place, one of three with its parity 5, of which there are 1024 at most.
MAX_CHANNELS = 256
MAX_BIT_STEPS = 1024
MAX_LANES = 512  # of planes whose lanes are digits or bits of the codes of no more than MAX_CHANNELS channels
MAX_CHUNKS = 4  # groups of channels that a token of keys has
TYPES = {torch.float16: 1, torch.float32: 2}
QUERY_TYPES = TYPES | {torch.bfloat16: 3}
RESIDUAL_TYPES = {torch.float16: 1, torch.bfloat16: 3}


@dataclass(frozen=True)
class Variant(Compiled):
    """What ``attention.cu`` has to know to be compiled."""

    page: int = macro("tokens a page")
    row_tiles: int = macro("tiles of four query rows that a block takes")
    key_lanes: tuple[int, int] = macro("lanes of a plane of keys, 0: there is none")
    key_bits: tuple[int, int] = macro("bits of its codes")
    value_lanes: tuple[int, int] = macro("lanes of a plane of values")
    value_bits: tuple[int, int] = macro("bits of its codes")
    key_groups: bool = macro("whether pages of keys have groups of their own", default=False)
    value_groups: bool = macro("whether pages of values have", default=False)
    value_plane_weights: bool = macro("whether channels of values have several lanes", default=False)
    value_zeros: int = macro("zero points that a group of values has", default=0)
    key_norm: int = macro("norms of keys: 0: none, 1: float16, 2: float32", default=0)
    value_norm: int = macro("norms of values", default=0)
    value_token: int = macro("scales by token of values", default=0)
    query_type: int = macro("0: int8 with the scales in it; 1: float16, 2: float32, 3: bfloat16, without", default=0)
    key_scale: int = macro("with QUERY_TYPE, scales and zero points: 1: float16, 2: float32", default=0)
    key_zeros: int = macro("with QUERY_TYPE, zero points that a group of keys has", default=0)
    key_token: int = macro("zero points by token of keys, whose norms are scales", default=0)
    key_mean: int = macro("with QUERY_TYPE, a mean by group of pages, added to keys behind their norms", default=0)
    key_digits: bool = macro("whether more than 256 lanes of keys are digits of the codes of channels", default=False)
    key_bit_lanes: bool = macro("whether each bit of keys' codes is a lane of its own", default=False)
    value_bit_lanes: bool = macro("whether each bit of values' codes is", default=False)
    key_high_norm: bool = macro("whether channels of keys' second plane have norms of their own", default=False)
    value_high_norm: bool = macro("whether those of values have", default=False)
    key_gather: bool = macro("with QUERY_TYPE, whether groups of keys name the second plane's channels", default=False)
    kept: int = macro("slots of a head that are left out, in multiples of 32, 5 if more than 128", default=0)
    key_chunks: int = macro("groups of channels of a token that keys have scales for", default=1)
    key_heads: int = macro("heads that share the codes of keys", default=1)
    key_order: bool = macro("whether lanes of keys have an order by sequence and head", default=False)
    key_parts: int = macro("groups of tokens in a page that keys have scales for", default=1)
    value_parts: int = macro("groups of channels of a token that values have scales for", default=1)
    half_products: bool = macro("whether products are of float16: where there are several such groups", default=False)
    bias: int = macro("0: none, 1: any, 2: aligned to 16 bytes", default=0)
    calibrated: bool = macro("whether each row's logits are calibrated", default=False)
    logit_range: bool = macro("whether only each row's largest and smallest logit are wanted", default=False)
    residual: int = macro("0: no residual tokens, 1: float16, 3: bfloat16", default=0)
    residual_kept: bool = macro("whether the tokens that pages leave out are read with them", default=False)
    residual_key_dim: int = macro("their channels", default=0)
    residual_value_dim: int = macro("their values' channels", default=0)
    warps: int = macro("warps a block", default=8)
    stages: int = macro("pages that a warp has under way", default=1)
    blocks: int = macro("blocks a multiprocessor", default=2)

    @cached_property
    def stage_bytes(self) -> int:
        """Shared memory of a stage of keys and one of values: a page's codes and what belongs to them."""
        tokens, lanes = self.page, 8 * self.row_tiles
        keys = sum(tokens * b // 8 * j for b, j in zip(self.key_bits, self.key_lanes, strict=True))
        keys += tokens * 2 * (self.key_norm + self.key_token) * self.key_chunks + (self.bias == 2) * tokens * 4
        keys += self.key_high_norm * tokens * 2 * self.key_norm
        if self.query_type:
            width = self._key_width if self.key_lanes[1] and not self.key_gather else self.key_lanes[0]
            keys += self.key_groups * 4 * self.key_scale * self.key_parts * width + self.key_gather * self.key_lanes[1]
        else:
            keys += self.key_groups * lanes * self._key_width
        values = sum(tokens * b // 8 * j for b, j in zip(self.value_bits, self.value_lanes, strict=True))
        values += (self.value_groups * self._value_width + self.value_zeros) * 4
        values += self.half_products * 4 * self.value_parts * tokens
        return rounded(keys + 16, 128) + rounded(values, 128)

    @property
    def _key_width(self) -> int:
        first, second = (aligned(lanes) for lanes in self.key_lanes)
        return first * self.key_bits[0] + 2 * second if self.key_bit_lanes else first + second

    @property
    def _value_width(self) -> int:
        return sum(aligned(lanes) for lanes in self.value_lanes[: 1 if self.value_bit_lanes else 2])

    @cached_property
    def warp_bytes(self) -> int:
        """Shared memory of a warp: its stages, the page's probabilities, factors of values; at the end its sums."""
        stages = self.stages * self.stage_bytes + 8 * self.row_tiles * (self.page + 16) * (1 + self.value_high_norm)
        factors = self.value_norm * (1 + self.value_high_norm) + 2 * self.value_token * (not self.half_products)
        stages += (self.stages + 1) * self.page * 2 * factors
        sums = 4 * self.row_tiles * (self._value_width + self.value_zeros + 8) * 4
        return rounded(max(stages, sums), 128)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        rows = 4 * self.row_tiles
        folded = ((rows + 1) * self._key_width + self.key_zeros + rows) * 4 if self.query_type else 0
        stores = sum(lanes > 0 for lanes in (*self.key_lanes, *self.value_lanes))
        stores += sum(kind > 0 for kind in (self.key_norm, self.value_norm)) + 2 * (self.value_token > 0)
        stores += 2 * (self.key_groups and self.query_type != 0) + (self.key_token > 0) + self.key_gather
        folded += (self.key_chunks - 1 + self.key_high_norm) * rows * 4
        stores += self.key_high_norm + self.value_high_norm
        folded += (self.key_mean > 0 or self.key_gather) * rows * self.key_zeros * 4
        return self.warps * (self.warp_bytes + 3 * 4 * rows) + folded + 512 * stores

    @property
    def first_pass(self) -> Variant:
        """The variant that finds the range of the logits that this one calibrates."""
        return replace(self, calibrated=False, logit_range=True, residual=0, residual_key_dim=0, residual_value_dim=0)

    def fitted(self, shared_block: int, shared_total: int, units: float = 0.0) -> Variant | None:
        """The variant with as many warps and stages as a multiprocessor's shared memory and registers allow.

        Args:
            shared_block, shared_total: bytes that a block may ask for and that a multiprocessor has.
            units: blocks of one split for every multiprocessor: where they do not fit at once, smaller blocks are
                faster, of which one begins while others are at their pages.
        """
        # registers per lane: scores, weighted values and query, of the pages and before them of the residual tokens
        registers = self.row_tiles * (self.page // 4 + (sum(self.value_lanes) + self.value_zeros) // 8)
        registers += self.row_tiles * (self._key_width if self.key_bit_lanes else sum(self.key_lanes)) // 16
        residual_registers = self.residual_key_dim // 8 + self.residual_value_dim // 4
        spare = 12 if self.key_high_norm and self.row_tiles == 1 else 8  # two parts one after the other, of fewer lanes
        most = 16 if max(registers, residual_registers) <= 64 else spare
        deep = replace(self, stages=1).stage_bytes >= 8192
        fitted = None
        for warps, stages, blocks in PLANS:
            if warps * blocks > most or (stages > 1 and not deep):
                continue
            fitted = replace(self, warps=warps, stages=stages, blocks=blocks)
            block = fitted.shared_bytes
            if block <= shared_block and blocks * (block + 1024) <= shared_total:  # 1 KB of each block is the driver's
                break
        else:
            return None
        if units <= fitted.blocks or most < 12:
            return fitted
        small = replace(self, warps=3, stages=1, blocks=4)
        return small if 4 * (small.shared_bytes + 1024) <= shared_total else fitted


# (warps a block, stages, blocks a multiprocessor), best first, as measured on an H200. Large pages are worth two
# stages; where a lane needs many registers, eight warps with all they want are faster than more that spill.
PLANS = ((6, 2, 2), (8, 1, 2), (6, 1, 2), (4, 1, 2), (8, 1, 1), (6, 1, 1), (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1))


def laid_out(*tensors: torch.Tensor | None, inner: int) -> bool:
    """Whether every page of the tensors is 16-byte aligned and its ``inner`` last dimensions are contiguous."""
    return all(
        x is None or (x.data_ptr() % 16 == 0 and _steps_fit(x.shape, x.stride(), x.element_size(), inner))
        for x in tensors
    )


@lru_cache(maxsize=4096)
def _steps_fit(shape: torch.Size, strides: tuple[int, ...], element_size: int, inner: int) -> bool:
    """:func:`laid_out` but for the address."""
    outer = len(shape) - inner
    if any(
        size > 1 and stride * element_size % 16 for size, stride in zip(shape[:outer], strides[:outer], strict=True)
    ):
        return False
    expected = 1
    for size, stride in zip(reversed(shape[-inner:]), reversed(strides[-inner:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _planes_fit(planes: Sequence[Plane], dim: int, page_size: int, max_lanes: int, bit_lanes: bool) -> bool:
    if not 1 <= len(planes) <= 2 or padded_lanes(planes, dim) > max_lanes:
        return False
    for i, (codes, bits) in enumerate(planes):
        rows, lanes = codes.shape[-3 - dim], codes.shape[dim]
        unit = 8 if bit_lanes and i == 1 else 16
        if bits not in (1, 2, 4, 8) or rows != page_size * bits // 8 or rows < 16 or lanes % unit or lanes == 0:
            return False
    return all(codes.dtype == torch.uint8 and laid_out(codes, inner=2) for codes, _ in planes)


def _near(*tensors: torch.Tensor | None) -> bool:
    """Whether pages are less than 4 GiB apart: the kernel multiplies 32 bits by 32 bits."""
    return all(x is None or x.stride(2) * x.element_size() < 2**32 for x in tensors)


def _typed(*tensors: torch.Tensor | None) -> bool:
    return all(x is None or x.dtype in TYPES for x in tensors)


def _groups(group: str | torch.Tensor, count: int) -> bool:
    """Whether pages have groups of their own."""
    return not (isinstance(group, str) and group == "span") and count > 1


def _kept(slots: torch.Tensor | None) -> int:
    return 0 if slots is None else -(-min(slots.shape[-1], KEPT_IN_REGISTERS + 1) // 32)


def _bias_mode(bias: torch.Tensor | None) -> int:
    return 0 if bias is None else 2 if laid_out(bias, inner=1) else 1


def _folds(query: Query, keys: KeyPlanes, lanes: int) -> bool:
    """Whether the kernel can fold the scales of ``keys``, of ``lanes`` padded lanes, into the query."""
    scale, zero_point = query.scale, query.zero_point
    if query.rows.dtype not in QUERY_TYPES or not query.rows.is_contiguous():
        return False
    if not _typed(query.mean) or (query.mean is not None and query.mean.stride(-1) != 1):
        return False
    if keys.point is not None:  # scales and zero points by token
        order = query.lane_order
        if order is not None and (order.dtype != torch.int16 or not laid_out(order, inner=3)):
            return False
        whole = keys.chunks == 1 or not lanes % (64 * keys.chunks)
        return scale is query.lane_channel is None and query.rows.shape[-1] == lanes and whole
    if scale.dtype not in TYPES or scale.dtype != zero_point.dtype:
        return False
    if zero_point.shape[-1] > MAX_CHANNELS * keys.groups_in_page:
        return False
    if query.mean is not None or not _groups(keys.group, scale.shape[2]):
        return query.group_channel is None and all(x.stride(-1) == 1 or x.shape[-1] == 1 for x in (scale, zero_point))
    # scales of a page as they are in memory, for a query whose lanes are the channels
    plain = query.lane_channel is query.plane_weight is query.offset is None
    if query.group_channel is not None:
        lanes = keys.planes[0][0].shape[-1]
        if len(keys.planes) != 2 or lanes % 32 or keys.groups_in_page > 1 or lanes > MAX_CHANNELS:
            return False
        if query.group_channel.shape[-1] != keys.planes[1][0].shape[-1] or not laid_out(query.group_channel, inner=1):
            return False
    if len(keys.planes) == 1:
        lanes = keys.planes[0][0].shape[-1]  # those that only pad have no scales
    width = lanes * keys.groups_in_page
    if not plain or scale.shape[-1] != width or zero_point.shape[-1] != width or query.rows.shape[-1] < lanes:
        return False
    return laid_out(scale, zero_point, inner=1) and _near(scale, zero_point)


def residual_fits(residual: ResidualInputs) -> bool:
    query, key, value = residual.query, residual.key, residual.value
    dense = [x for x in (key, value, residual.kept_key, residual.kept_value) if x is not None]
    if query.dtype not in RESIDUAL_TYPES or {x.dtype for x in dense} != {query.dtype} or residual.columns == 0:
        return False
    if any(x.shape[-1] % 8 or x.shape[-1] > MAX_CHANNELS for x in (key, value)):
        return False
    if residual.bias is not None and (residual.bias.dtype != torch.float32 or residual.bias.stride(-1) != 1):
        return False
    return laid_out(query, inner=3) and laid_out(*dense, inner=1) and _near(*dense)


def _query_fields(query: torch.Tensor | Query, keys: KeyPlanes, lanes: int) -> dict[str, Any] | None:
    """Fields of the query and of the scales that it carries or that are folded into it, or None if it does not fit.

    Args:
        lanes: padded lanes of all planes of keys.
    """
    if isinstance(query, Query):
        if not _folds(query, keys, lanes):
            return None
        fields = {"query_type": QUERY_TYPES[query.rows.dtype]}
        if query.mean is not None:
            fields["key_mean"] = TYPES[query.mean.dtype]
        if keys.point is not None:
            fields |= {"key_chunks": keys.chunks, "key_heads": keys.heads_together}
            fields["key_order"] = query.lane_order is not None
            return fields | {"key_token": TYPES[keys.point.dtype], "key_zeros": keys.planes[0][0].shape[-1]}
        return fields | {
            "key_scale": TYPES[query.scale.dtype],
            "key_zeros": query.zero_point.shape[-1] // keys.groups_in_page,
            "key_groups": query.mean is None and _groups(keys.group, query.scale.shape[2]),
            "key_gather": query.group_channel is not None,
        }
    if query.dtype != torch.int8 or not laid_out(query, inner=5) or query.shape[-1] != lanes:
        return None
    return {"key_groups": _groups(keys.group, query.shape[2])}


def _value_fields(values: ValuePlanes) -> dict[str, Any] | None:
    """Fields of the values' scales and zero points, or None if they are not as the kernel reads them."""
    scale, zero_point = values.scale, values.zero_point
    if values.axis == "token":
        if values.norm is not None or scale is None or zero_point is None or scale.dtype != zero_point.dtype:
            return None
        if not _typed(scale) or not _near(scale, zero_point):
            return None
        if scale.shape != zero_point.shape or not laid_out(scale, zero_point, inner=2):
            return None
        return {"value_token": TYPES[scale.dtype], "value_parts": scale.shape[3]}
    if values.high_norm is not None:
        plain = all(x.dtype == torch.float32 and x.shape[2] == x.stride(-1) == 1 for x in (scale, zero_point))
        return {"value_high_norm": True} if plain else None
    if scale is None or not _groups(values.group, scale.shape[2]):
        return {}
    for x in (scale, zero_point):
        if x is None or x.dtype != torch.float32 or x.shape[-1] % 8 or not laid_out(x, inner=4):
            return None
    if zero_point.shape[-1] > MAX_CHANNELS:
        return None
    return {"value_groups": True, "value_zeros": zero_point.shape[-1]}


def _residual_fields(residual: ResidualInputs | None) -> dict[str, Any] | None:
    """Fields of the residual tokens, or None if the kernel cannot read them."""
    if residual is None:
        return {}
    if not residual_fits(residual):
        return None
    return {
        "residual": RESIDUAL_TYPES[residual.query.dtype],
        "residual_kept": residual.kept_key is not None,
        "residual_key_dim": residual.key.shape[-1],
        "residual_value_dim": residual.value.shape[-1],
    }


def _pair(numbers: list[int]) -> tuple[int, int]:
    """Numbers of one or two planes as two, 0 for a plane that there is not."""
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0)


def variant_of(
    query: torch.Tensor | Query,
    keys: KeyPlanes,
    values: ValuePlanes,
    bias: torch.Tensor | None = None,
    residual: ResidualInputs | None = None,
    calibrated: bool = False,
) -> Variant | None:
    """The variant of ``attention.cu`` for a case, without warps and stages, or None if there is none.

    Args:
        query: int8 ``[B, H, G, 2 * R, J]``, or :class:`Query`.
        keys: :class:`KeyPlanes`.
        values: :class:`ValuePlanes`.
        bias: float32 ``[B, slots]`` or None.
        residual: :class:`ResidualInputs` or None.
        calibrated: whether each row's logits are calibrated; keys with norms cannot be.
    """
    page = keys.page_size
    if page not in PAGE_SIZES or (calibrated and not (keys.norm is None and keys.kept_slot is None)):
        return None
    if keys.kept_slot is not None and keys.kept_slot.stride(-1) != 1:
        return None
    digits = keys.channels is not None and keys.channels <= MAX_CHANNELS
    value_bits = values.bit_weights is not None
    key_lanes = MAX_LANES if digits or keys.bit_lanes else MAX_CHANNELS * keys.chunks
    value_lanes = MAX_LANES if values.has_plane_weights or value_bits else MAX_CHANNELS
    if keys.chunks > MAX_CHUNKS or not _planes_fit(keys.planes, -1, page, key_lanes, keys.bit_lanes):
        return None
    if not _planes_fit(values.planes, -2, page, value_lanes, value_bits):
        return None
    by_token = (keys.norm, keys.high_norm, keys.point, values.norm, values.high_norm)
    alike = all(x.high_norm is None or x.norm.dtype == x.high_norm.dtype for x in (keys, values))
    if not alike or not _typed(*by_token) or not laid_out(*by_token, inner=1):
        return None
    if not _near(*by_token, *(codes for codes, _ in (*keys.planes, *values.planes))):
        return None
    if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
        return None
    query_macros = _query_fields(query, keys, keys.width)
    value_macros, residual_macros = _value_fields(values), _residual_fields(residual)
    if query_macros is None or value_macros is None or residual_macros is None:
        return None
    variant = Variant(
        page=page,
        row_tiles=1 if rows_of(query) <= 4 else 2,
        key_lanes=_pair([codes.shape[-1] for codes, _ in keys.planes]),
        key_bits=_pair([bits for _, bits in keys.planes]),
        value_lanes=_pair([codes.shape[-2] for codes, _ in values.planes]),
        value_bits=_pair([bits for _, bits in values.planes]),
        value_plane_weights=values.has_plane_weights,
        key_norm=0 if keys.norm is None else TYPES[keys.norm.dtype],
        value_norm=0 if values.norm is None else TYPES[values.norm.dtype],
        bias=_bias_mode(bias),
        calibrated=calibrated,
        kept=_kept(keys.kept_slot),
        key_parts=keys.groups_in_page,
        key_digits=digits and keys.width > MAX_CHANNELS,
        key_bit_lanes=keys.bit_lanes,
        key_high_norm=keys.high_norm is not None,
        value_bit_lanes=value_bits,
        **query_macros,
        **value_macros,
        **residual_macros,
    )
    if variant.key_parts > 1 or variant.value_parts > 1:
        return _with_half_products(variant)
    return variant if _has_bit_lanes(variant) else None


def _has_bit_lanes(variant: Variant) -> bool:
    """Whether the kernel can take the bits of codes apart, if the variant wants that."""
    for wanted, (first, second), bits in (
        (variant.key_bit_lanes, variant.key_lanes, variant.key_bits),
        (variant.value_bit_lanes, variant.value_lanes, variant.value_bits),
    ):
        if wanted and (bits[0] != 2 or first > MAX_CHANNELS or second > first):
            return False
        if wanted and second and (bits[1] != 1 or variant.page != 128):
            return False
    if variant.key_bit_lanes:
        first, second = variant.key_lanes
        if variant.query_type == 0 or variant.key_groups or 3 * first + 2 * second > MAX_BIT_STEPS:
            return False
        if second % 16 and second > 64:  # whole chunks are 16 bytes of a lane
            return False
    return not (variant.value_bit_lanes and (variant.value_token or variant.value_groups))


def _with_half_products(variant: Variant) -> Variant | None:
    """The variant with products in float16, or None where the kernel has none of these."""
    tokens, lanes = variant.page // variant.key_parts, variant.value_lanes[0] // variant.value_parts
    if variant.key_parts > MAX_PARTS or variant.value_parts > MAX_PARTS or tokens % 16 or lanes % 16:
        return None
    if variant.key_bit_lanes or variant.value_bit_lanes:
        return None
    if variant.key_lanes[1] or variant.value_lanes[1] or variant.calibrated:
        return None
    if not variant.key_groups or variant.key_scale != 1 or variant.value_token != 1:
        return None
    return replace(variant, half_products=True)
