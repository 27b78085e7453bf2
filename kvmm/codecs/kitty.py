"""Kitty (arXiv 2511.18643): 2-bit keys in which the strongest channels of every page have four bits.

Keys are coded per channel over ``group_size`` tokens. A dense plane holds two bits of every channel; a second plane
holds two more of the boosted channels only, where ``code = low + 4 * high``, with a byte that names each channel.
Values have 2 bits, per token over ``group_size`` channels. Which channels are boosted is decided once a group, when it
is packed: no ranking runs while tokens are generated (the paper amortises it over 128 steps, here that is how pages
are made).

Departures from the authors' code: only boosted channels have an index byte (theirs: every channel); a share of the
channels that is no whole number is rounded to the nearest one (theirs: down); with ``random`` they draw channels anew
for every page, here once for each layer and head, so that codes do not depend on when a page is packed. ``range`` and
``query_range`` are not in the paper: the size of a quantisation step, and with it the error of a channel, follows from
its range and not from its magnitude. On tiny-omni (24 held-out questions and 64 tokens of each transcription)
magnitude has KL .0170, range .0195, range and queries .0196, random channels .0429; on SmolLM2-135M and a novel .0349,
.0442, .0238 and .1060 (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import AffineCodec
from kvmm.codecs.base import EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.attention import scores_per_channel, scores_second_plane
from kvmm.kernels.attention.format import PackedFormat, Plane, plane_layout
from kvmm.kernels.quantize import Pages, TokenGroups, affine_parameters, cut_pages, unpack_planes


class Kitty(AffineCodec):
    """Two bits, four for the boosted key channels of each group and head.

    Stored besides the tensors of :class:`AffineCodec`: ``high_codes`` uint8 ``[B, H, U, n / 4, K]``, the second digits
    of the ``K`` boosted channels of each unit of ``n`` tokens (a group, or its part in a page), and ``boosted`` uint8
    ``[B, H, G, K]``, the channels.

    Options:
        boost: share of the channels with four bits: 0.125 (Kitty) or 0.25 (Kitty-Pro), or any from 0 to 1. Where it
            comes to no channel, the keys are plain two-bit codes, and the two tensors above are not stored.
        score: what ranks channels: ``magnitude`` (mean ``|k|`` over the group, the paper's), ``range`` (maximum minus
            minimum, to which the error is proportional), ``query_range`` (range times the root mean square of the
            prompt's queries in that channel; the range alone where no queries were seen), or ``random`` (the paper's
            ablation: channels drawn without a look at the keys; the same in every process and at every call).
    """

    name = "kitty"
    bits = (2,)
    pages_stand_alone = True
    static_encode = True
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **AffineCodec.options,
        "boost": (0.125,),
        "score": ("magnitude", "range", "query_range", "random"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.boost = self.option("boost")
        self.score = self.option("score")
        self.needs_queries = side == "key" and self.score == "query_range"

    @property
    def stored(self) -> Mapping[str, Stored]:
        return super().stored | {"boosted": Stored("group")}

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        boost = spec.option("boost", 0.125)
        if not isinstance(boost, (int, float)) or not 0 <= boost <= 1:
            raise KVMMError(f"Codec kitty: boost must be a share of the channels, 0 to 1, not {boost!r}.")

    def boosted_channels(self, dim: int) -> int:
        """``K``: how many of ``dim`` channels have four bits."""
        return 0 if self.side == "value" else round(self.boost * dim)

    def channel_scores(
        self,
        pages: Pages,
        groups: TokenGroups,
        spread: torch.Tensor,
        query_moment: torch.Tensor | None,
    ) -> torch.Tensor:
        """The score ``[B, H, G, D]`` of every channel; ``spread`` is its range in the group."""
        if self.score == "magnitude":
            # all channels of a group have as many tokens, so the sum ranks like the mean
            return pages.channel_magnitudes(groups)
        if self.score == "random":
            return _random_scores(self.site.layer, spread.shape[1], spread.shape[3], spread.device).expand_as(spread)
        if self.score == "query_range" and query_moment is not None:
            return spread * query_moment.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().unsqueeze(2)
        return spread

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        count = self.boosted_channels(x.shape[-1])
        if not count:
            return super().encode(x, context)
        pages = cut_pages(x, context.page_size, context.valid)
        groups = pages.groups(self.spec.group_size)
        if self.score == "magnitude":
            low, high, scores = pages.channel_extent(groups)
        else:
            low, high = pages.channel_ranges(groups)
            scores = self.channel_scores(pages, groups, high - low, context.query_moment)
        boosted = scores.topk(count, -1).indices.sort(-1).values  # [B, H, G, K]
        bits = torch.full_like(low, 2).scatter_(-1, boosted, 4)
        scale, zero_point = affine_parameters(low, high, bits, dtype=self.parameter_dtype)
        codes, high_codes = pages.two_plane_codes(scale, zero_point, groups, boosted)
        tensors = {
            "codes": codes,
            "high_codes": high_codes,
            "boosted": boosted.to(torch.uint8),
            "scale": scale,
            "zero_point": zero_point,
        }
        return Packed(tensors, context.page_size, groups.page_group)

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        fields = super().fields(store, tensors)
        count = self.boosted_channels(store.dim)
        if not count:
            return fields
        unit = self.units(store.page_size)
        high = (store.batch, store.heads, store.pages * store.page_size // unit, unit // 4, count)
        fields["high_codes"] = Field(torch.uint8, high)
        fields["boosted"] = Field(torch.uint8, (*fields["scale"].shape[:3], count), 0, store.dim)
        return fields

    def high_codes(self, packed: Packed) -> torch.Tensor:
        """The second digits, float32 ``[B, H, U, n, K]``."""
        return unpack_planes(packed["high_codes"], 2, -2).float()

    def decode_pages(self, packed: Packed) -> torch.Tensor:
        pages = super().decode_pages(packed)
        if "boosted" not in packed.tensors:
            return pages
        high, index, scale = self.high_codes(packed), packed["boosted"].long(), packed["scale"].float()
        step = 4 * scale.gather(-1, index)
        if packed.page_group is not None:
            index, step = (p.index_select(2, packed.page_group) for p in (index, step))
        units = pages.flatten(2, 3).unflatten(2, (index.shape[2], -1))
        units.scatter_add_(-1, index.unsqueeze(3).expand_as(high), high * step.unsqueeze(3))
        return units.flatten(2, 3).unflatten(2, (-1, packed.page_size))

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        store = super().packed_format(packed)
        if "boosted" not in packed.tensors:
            return store
        high = packed["high_codes"]
        if high.shape[3] * 4 != packed.page_size:
            return None  # several groups in a page have their planes one after the other
        low = store.planes[0]
        runs = (((0, low.width, 1.0),), ((0, high.shape[-1], 4.0),))
        channel, weight = plane_layout(runs, high.device)
        return replace(
            store,
            planes=(low, Plane(high, 2, high.shape[-1])),
            lane_channel=channel,
            plane_weight=weight,
            group_channel=packed["boosted"],
        )

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        scale, groups = packed["scale"], packed.page_group
        if "boosted" not in packed.tensors:
            return super().scores(query, packed)
        first = scores_per_channel(query, self.codes(packed), scale, packed["zero_point"], groups)
        return first.add_(scores_second_plane(query, self.high_codes(packed), packed["boosted"].long(), scale, groups))


@lru_cache(maxsize=256)
def _random_scores(layer: int, heads: int, dim: int, device: torch.device) -> torch.Tensor:
    """float32 ``[1, heads, 1, dim]`` in [0, 1), seeded by the layer."""
    return torch.rand(1, heads, 1, dim, generator=torch.Generator().manual_seed(layer)).to(device)
