"""Affine codes in pages: what KIVI, OScaR and CalibQuant have in common.

Two layouts. *Per channel*: one scale and zero point a channel and group of tokens; a group is a part of a page, one or
more pages, or the whole span of one modality. *Per token*: one scale and zero point a token and group of channels.

Stored tensors: ``codes`` uint8, keys ``[B, H, P, N * bits / 8, D]``, values transposed ``[B, H, P, D, N * bits / 8]``;
``scale`` and ``zero_point`` ``[B, H, G, D]`` (per channel) or ``[B, H, P, C, N]`` (per token).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch

from kvmm.codecs.base import Codec, EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.fields import Field
from kvmm.kernels.attention import (
    scores_per_channel,
    scores_per_token,
    weighted_values_per_channel,
    weighted_values_per_token,
)
from kvmm.kernels.attention.format import PackedFormat, Plane, pad_lanes
from kvmm.kernels.hadamard import hadamard_matrix, rotate, unrotate
from kvmm.kernels.quantize import (
    Pages,
    TokenGroups,
    affine_parameters,
    code_center,
    cut_pages,
    unpack_keys,
    unpack_planes,
    unpack_values,
)

Axis = Literal["channel", "token"]


class AffineCodec(Codec):
    """Min/max affine codes in one layout; subclasses choose it, and may normalise, rotate or refit.

    Options:
        parameters: ``float16`` or ``float32`` scales, zero points and norms. Half precision has ten bits of mantissa;
            bf16 would lose the zero point of keys with a large bias.
    """

    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {"parameters": ("float16", "float32")}
    integer_zero = False

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis: Axis = "channel" if side == "key" else "token"
        self.parameter_dtype: torch.dtype = getattr(torch, self.option("parameters"))

    @property
    def stored(self) -> Mapping[str, Stored]:
        return dict.fromkeys(("scale", "zero_point"), Stored("group")) if self.axis == "channel" else {}

    # -- parameters -------------------------------------------------------------------------------------------------

    def channel_parameters(self, pages: Pages, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point ``[B, H, G, D]`` of every channel and group of tokens."""
        if not self.integer_zero:
            return pages.channel_range_parameters(groups, self.spec.bits, self.parameter_dtype)
        low, high = pages.channel_ranges(groups)
        return affine_parameters(low, high, self.spec.bits, dtype=self.parameter_dtype, integer_zero=True)

    def token_parameters(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point ``[B, H, P, C, N]`` of every token and group of channels, from their ranges."""
        return affine_parameters(low, high, self.spec.bits, dtype=self.parameter_dtype, integer_zero=self.integer_zero)

    @property
    def _takes_ranges(self) -> bool:
        """Whether :meth:`token_parameters` takes ranges as they are, which a kernel can do as it makes the codes."""
        return type(self).token_parameters is AffineCodec.token_parameters

    # -- encode and decode ------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        return self.encode_pages(cut_pages(x, context.page_size, context.valid))

    def encode_pages(self, pages: Pages) -> Packed:
        """Encode what a chain of :class:`Pages` has made of the vectors."""
        bits, transposed, page_group = self.spec.bits, self.side == "value", None
        if self.axis == "channel":
            groups = pages.groups(self.spec.group_size)
            scale, zero_point = self.channel_parameters(pages, groups)
            codes = pages.channel_codes(scale, zero_point, groups, bits, transposed)
            page_group = groups.page_group
        elif self._takes_ranges:
            groups = self.channel_groups(pages.shape[-1])
            codes, scale, zero_point = pages.token_range_codes(
                groups, bits, self.parameter_dtype, transposed, self.integer_zero
            )
        else:
            ranges = pages.token_ranges(self.channel_groups(pages.shape[-1]))
            scale, zero_point = (p.contiguous() for p in self.token_parameters(*ranges))
            codes = pages.token_codes(scale, zero_point, bits, transposed)
        shared = 0 if page_group is not None and self.spec.group_size is None else None
        tensors = {"codes": codes, "scale": scale, "zero_point": zero_point}
        return Packed(tensors, pages.page_size, page_group, shared_group=shared)

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        pages, page_size, dim = store.pages, store.page_size, store.dim
        rows, fields = page_size * self.spec.bits // 8, {}
        if self.axis == "token":
            shape = (store.batch, store.heads, pages, self.channel_groups(dim), page_size)
        else:
            groups: int | str = pages * page_size // self.units(page_size)
            if self.shares_groups(page_size):
                groups, fields["page_group"] = "groups", Field(torch.int32, (pages,), 0, "groups")
            shape = (store.batch, store.heads, groups, dim)
        codes = (rows, dim) if self.side == "key" else (dim, rows)
        fields["codes"] = Field(torch.uint8, (store.batch, store.heads, pages, *codes))
        return fields | {name: Field(self.parameter_dtype, shape) for name in ("scale", "zero_point")}

    def shares_groups(self, page_size: int) -> bool:
        """Whether the groups of a per-channel code are longer than pages."""
        return self.spec.group_size is None or self.spec.group_size > page_size

    def units(self, page_size: int) -> int:
        """Tokens of a group that lie in one page, per channel."""
        return min(self.spec.group_size or page_size, page_size)

    def channel_groups(self, head_dim: int) -> int:
        """Groups of channels of a per-token code."""
        size = self.spec.group_size
        return head_dim // size if size is not None and size < head_dim and head_dim % size == 0 else 1

    def codes(self, packed: Packed) -> torch.Tensor:
        """Unpacked codes, float32: keys ``[B, H, P, N, D]``, values ``[B, H, P, D, N]``."""
        return unpack_planes(packed["codes"], self.spec.bits, -2 if self.side == "key" else -1).float()

    def decode_pages(self, packed: Packed) -> torch.Tensor:
        """float32 pages ``[B, H, P, N, D]`` in the basis of the codes."""
        codes = self.codes(packed)
        if self.side == "value":
            codes = codes.transpose(-1, -2)
        scale, zero_point = packed["scale"].float(), packed["zero_point"].float()
        if self.axis == "channel":
            if packed.page_group is not None:
                scale, zero_point = (p.index_select(2, packed.page_group) for p in (scale, zero_point))
            units = codes.flatten(2, 3).unflatten(2, (scale.shape[2], -1))
            x = units * scale.unsqueeze(3) + zero_point.unsqueeze(3)
            return x.flatten(2, 3).unflatten(2, (-1, packed.page_size))
        split = codes.unflatten(-1, (scale.shape[3], -1))
        scale, zero_point = (p.transpose(-1, -2).unsqueeze(-1) for p in (scale, zero_point))
        return (split * scale + zero_point).flatten(-2)

    def decode(self, packed: Packed) -> torch.Tensor:
        return self.decode_pages(packed).flatten(2, 3)

    # -- attention --------------------------------------------------------------------------------------------------

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        codes, scale = packed["codes"], packed["scale"]
        by_token = self.axis == "token"
        page_group, groups_per_page = packed.page_group, 0
        if page_group is None and not by_token:
            groups_per_page = max(1, packed.page_size // (self.spec.group_size or packed.page_size))
        elif not by_token and scale.shape[2] == 1:
            page_group = None
        return PackedFormat(
            (Plane(codes, self.spec.bits, codes.shape[-1 if self.side == "key" else -2]),),
            codes.shape[2],
            packed.page_size,
            scale,
            packed["zero_point"],
            by_token=by_token,
            page_group=page_group,
            groups_per_page=groups_per_page,
            norm=packed.tensors.get("norm"),
        )

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        codes = unpack_keys(packed["codes"], self.spec.bits)
        scale, zero_point = packed["scale"], packed["zero_point"]
        if self.axis == "channel":
            return scores_per_channel(query, codes, scale, zero_point, packed.page_group, packed.tensors.get("norm"))
        return scores_per_token(query, codes, scale, zero_point)

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        # A zero point is the lowest value: weighted codes and weighted zero points would be two large sums that nearly
        # cancel where values do, and float32 would round both. Around the middle code both are small.
        codes = unpack_values(packed["codes"], self.spec.bits, centered=True)
        scale = packed["scale"]
        zero_point = packed["zero_point"].float() + code_center(self.spec.bits) * scale.float()
        if self.axis == "channel":
            return weighted_values_per_channel(probabilities, codes, scale, zero_point, packed.page_group)
        return weighted_values_per_token(probabilities, codes, scale, zero_point)


class RotatedAffineCodec(AffineCodec):
    """Affine codes of vectors that a Hadamard rotation of the head dimension has spread out."""

    rotation: bool = True

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        if spec.option("rotation", True):
            hadamard_matrix(head_dim)

    @property
    def transform_id(self) -> Hashable:
        return "hadamard" if self.rotation else "identity"

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return rotate(query) if self.rotation else query

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        return unrotate(output) if self.rotation else output

    def rotated(self, pages: Pages) -> Pages:
        """Pages in the basis of the codes."""
        return pages.rotate() if self.rotation else pages

    def restored(self, pages: torch.Tensor) -> torch.Tensor:
        """Vectors ``[..., D]`` back from the basis of the codes."""
        return unrotate(pages) if self.rotation else pages

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        store = super().packed_format(packed)
        if not self.rotation or store is None:
            return store
        return replace(store, transform=_rotation(store.planes[0].width, self.side, packed["codes"].device))


@lru_cache(maxsize=32)
def _rotation(dim: int, side: Side, device: torch.device) -> torch.Tensor:
    """float32 ``[1, D, Q]`` from queries to rotated keys, or ``[1, D, D]`` from rotated values back."""
    matrix = hadamard_matrix(dim, device)
    return pad_lanes(matrix.T)[None] if side == "key" else matrix[None]
