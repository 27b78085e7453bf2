"""RotateKV (arXiv 2501.16383): keys per token after a Hadamard rotation across several heads and a channel reorder.

The paper rotates keys before RoPE, folded into the weights, sorts the rotated channels by their calibrated means so
that a group of them has a narrow range, and rotates back before RoPE. A cache behind RoPE cannot do that. What is done
instead, on keys after RoPE:

- the heads of a group of ``head_group`` are rotated together, by one Hadamard matrix over all their channels;
- the mean of the keys over the span is subtracted (:mod:`kvmm.codecs.common.offset`), which takes away all of what the
  paper sorts by; the channels are then sorted by their spread, so that wide ones share groups (``order="mean"`` with
  ``offset="none"`` is the paper's way);
- each token has one asymmetric scale per ``group_size`` sorted channels.

Values are rotated a head and coded per token, as in the paper. It keeps 20 tokens with massive activations in full
precision; hidden states are not seen by a cache, so presets keep 20 sinks, and the option ``pivots`` keeps the tokens
with the smallest keys, which is how such tokens look in a cache.

What the departures cost: KL divergence from full precision of tiny-omni (two KV heads) on 24 held-out
questions and 64 tokens of each transcription (``benchmarks.drift --limit 24 --transcribe 64``; intervals are about a
third of it), and measured bits per packed value. The preset has 2.84 bits, .0264.

- Mean and spread instead of the paper's order: ``order="mean", offset="none"`` 2.78, .0255; ``order="none"`` .0265.
- Groups of two heads, where the authors' code has four (``head_group=4``, which two heads do not fill); with
  ``head_group=1`` 2.98 bits, .0207. The authors sort the channels of all heads of a layer together; here those of a
  group are.
- Sinks instead of massive activations: 4 sinks give 2.58 bits, .0220, and with ``pivots=20`` 4.30 bits, .0261, since 20
  tokens of every short span are many.
- Zero points that are not rounded to whole steps; ``zero_point="integer"`` is the authors' quantiser, which is nearer
  on a pretrained language model: SmolLM2-135M on 1536 tokens of a novel, KL .1193 and .0722; with the authors' order
  and no offset .3150 (docs/results.md).
- After RoPE instead of before it: not measured, as a cache sees no keys before it.

The query of one head meets the codes of its whole group, ``head_group`` times the products of other codecs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import AffineCodec, RotatedAffineCodec
from kvmm.codecs.base import EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.offset import OFFSET, add_offset, offset_fields, offset_scores, subtract_offset
from kvmm.codecs.common.outliers import (
    OUTLIERS,
    find_outliers,
    num_outliers,
    outlier_fields,
    outlier_scores,
    put_back,
    split_probabilities,
    take_out,
)
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields
from kvmm.kernels.attention.format import PackedFormat
from kvmm.kernels.hadamard import hadamard_matrix, rotate, unrotate
from kvmm.kernels.quantize import Pages, cut_pages


class RotateKV(RotatedAffineCodec):
    """Per-token codes of keys rotated across heads.

    Stored besides the tensors of :class:`AffineCodec`, whose ``H`` counts groups of heads for keys: ``channel_order``
    int16 ``[B, H, 1, D]`` (the channels of a group of heads in order, side by side), ``offset`` ``[B, H, G, D]``, and
    the tokens of ``pivots``.

    Options:
        head_group: heads rotated together; a model whose number of KV heads it does not divide uses their greatest
            common divisor.
        order: what channels are sorted by: ``spread`` (standard deviation over the first span), ``mean`` or ``none``.
        offset: ``mean`` (stored once a span) or ``none``.
        pivots: tokens of each span kept in full precision, keys and values.
        zero_point: ``float`` (the group's minimum), or ``integer`` (a whole number of steps, the authors' code).
    """

    name = "rotatekv"
    stored: ClassVar[Mapping[str, Stored]] = {**OFFSET, "channel_order": Stored("span"), **OUTLIERS}
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **RotatedAffineCodec.options,
        "head_group": (2,),
        "order": ("spread", "mean", "none"),
        "offset": ("mean", "none"),
        "pivots": (0,),
        "zero_point": ("float", "integer"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis = "token"
        self.head_group = self.option("head_group")
        self.order = self.option("order")
        self.centred = self.option("offset") == "mean"
        self.absorbs_bias = self.option("offset") == "mean"
        self.pivots = self.option("pivots")
        self.integer_zero = self.option("zero_point") == "integer"

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        heads, pivots = spec.option("head_group", 2), spec.option("pivots", 0)
        if heads not in (1, 2, 4, 8):
            raise KVMMError(f"Codec rotatekv: head_group must be 1, 2, 4 or 8 heads, not {heads!r}.")
        if not isinstance(pivots, int) or pivots < 0:
            raise KVMMError(f"Codec rotatekv: pivots must be a number of tokens, 0 or more, not {pivots!r}.")

    # -- basis: keys of a group of heads side by side, g * D channels ------------------------------------------------

    @property
    def transform_id(self) -> Hashable:
        return "hadamard" if self.side == "value" else (self.name, self.head_group)

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        """Queries (or single heads' keys) ``[B, H, Q, D]`` to ``[B, H, Q, g * D]``, zero for other heads, rotated."""
        heads, dim = query.shape[1], query.shape[-1]
        g = gcd(heads, self.head_group)
        matrix = hadamard_matrix(g * dim, query.device).view(g * dim, g, dim)
        return torch.einsum("bhjqd,wjd->bhjqw", query.float().unflatten(1, (-1, g)), matrix).flatten(1, 2)

    @staticmethod
    def _wide(x: torch.Tensor, g: int) -> torch.Tensor:
        """``[B, H, ..., D]`` to ``[B, H / g, ..., g * D]``."""
        return x.unflatten(1, (-1, g)).movedim(2, -2).flatten(-2)

    @staticmethod
    def _narrow(x: torch.Tensor, g: int) -> torch.Tensor:
        """The inverse of :meth:`_wide`."""
        return x.unflatten(-1, (g, -1)).movedim(-2, 2).flatten(1, 2)

    # -- encode and decode ------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        pages = cut_pages(x, context.page_size, context.valid)
        tensors: dict[str, torch.Tensor] = {}
        if self.pivots:
            slots = find_outliers(x, num_outliers(x.shape[2], self.pivots, None, context), context)
            pages, tensors = take_out(x, pages, slots, context)
        if self.side == "value":
            packed = self.encode_pages(pages.rotate())
            packed.tensors |= tensors
            return packed
        group = None
        if self.centred:
            pages, tensors["offset"], group = subtract_offset(pages, x.shape[2], context, self.parameter_dtype)
        g = gcd(x.shape[1], self.head_group)
        if context.previous is None:
            index = self._channel_order(pages, g)
            tensors["channel_order"] = self._narrow(index.to(torch.int16).unsqueeze(2), g)
        else:
            order = context.previous["channel_order"]
            index, tensors["channel_order"] = self._wide(order, g)[:, :, 0].long(), order[:, :, :0]
        coded = [self.encode_pages(joined.sort_channels(index)).tensors for joined in self._joined(pages, g)]
        tensors |= coded[0] if len(coded) == 1 else {n: torch.cat([p[n] for p in coded], 2) for n in coded[0]}
        return Packed(tensors, context.page_size, group)

    def _joined(self, pages: Pages, g: int) -> Iterator[Pages]:
        """Pages of ``g`` heads together, in runs: all at once where they have a joint form, else a few that exist at a
        time."""
        groups = self.channel_groups(g * pages.shape[-1])
        joined = pages.join_heads(g, groups)
        return (part.join_heads(g, groups) for part in pages.parts()) if joined is None else iter((joined,))

    def _channel_order(self, pages: Pages, g: int) -> torch.Tensor:
        """int64 ``[B, H / g, g * D]``: the rotated channels of each group of heads from the smallest up."""
        batch, heads, *_, dim = pages.shape
        if self.order == "none":
            return torch.arange(g * dim, device=pages.device).expand(batch, heads // g, -1)
        if self.order == "mean":
            return rotate(self._wide(pages.mean(), g)).argsort(-1)
        sums = [run.channel_sums() for run in self._joined(pages, g)]
        count, total, squares = sums[0] if len(sums) == 1 else (sum(of_runs) for of_runs in zip(*sums, strict=True))
        count = count.clamp_min(1) if isinstance(count, torch.Tensor) else count
        mean = total / count
        return (squares / count - mean * mean).argsort(-1)

    def _index(self, order: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """A stored order as the int64 index of the last dimension of ``wide`` ``[B, H / g, ..., g * D]``."""
        index = self._wide(order, order.shape[1] // wide.shape[1]).long()  # [B, H / g, 1, W]
        return (index if wide.dim() == 4 else index.unsqueeze(3)).expand_as(wide)

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        kept = outlier_fields(store) if self.pivots else {}
        if self.side == "value":
            return super().fields(store, tensors) | kept
        if self.centred:
            kept |= offset_fields(store, self.parameter_dtype)
        g = gcd(store.heads, self.head_group)
        wide = replace(store, heads=store.heads // g, dim=store.dim * g)
        order = Field(torch.int16, (store.batch, store.heads, 1, store.dim), 0, wide.dim)
        check_fields(tensors, {"channel_order": order}, closed=False)
        sorted_order = self._wide(tensors["channel_order"], g).long().sort(-1).values
        if not bool((sorted_order == torch.arange(wide.dim, device=sorted_order.device)).all()):
            raise KVMMError("channel_order: does not name every channel once")
        return super().fields(wide, tensors) | kept | {"channel_order": order}

    def decode(self, packed: Packed) -> torch.Tensor:
        pages = self.decode_pages(packed)
        if self.side == "value":
            decoded = unrotate(pages).flatten(2, 3)
        else:
            order = packed["channel_order"]
            pages = torch.empty_like(pages).scatter_(-1, self._index(order, pages), pages)
            pages = self._narrow(unrotate(pages), order.shape[1] // pages.shape[1])
            decoded = (add_offset(pages, packed) if self.centred else pages).flatten(2, 3)
        return put_back(decoded, packed) if self.pivots else decoded

    # -- attention --------------------------------------------------------------------------------------------------

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        store = AffineCodec.packed_format(self, packed) if self.side == "key" else super().packed_format(packed)
        if self.pivots:  # as the model made them: each head has its own, whatever it is rotated with
            store = replace(store, kept=packed["outlier"], kept_slot=packed["outlier_slot"])
        if self.side == "value":
            return store
        order = packed["channel_order"]
        heads, dim = order.shape[1], order.shape[-1]
        mean, page_group = None, None
        if self.centred:  # as wide as the rotated keys
            mean, page_group = self.transform_query(packed["offset"]), packed.page_group
        transform = _head_rotations(heads, heads // packed["codes"].shape[1], dim, order.device)
        return replace(
            store,
            mean=mean,
            page_group=page_group,
            transform=transform,
            head_group=heads // packed["codes"].shape[1],
            lane_order=order,
        )

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        heads, rows = query.shape[1:3]
        g = heads // packed["codes"].shape[1]
        sorted_query = query.unflatten(1, (-1, g)).flatten(2, 3)  # [B, H / g, g * Q, W]
        sorted_query = sorted_query.gather(-1, self._index(packed["channel_order"], sorted_query))
        scores = super().scores(sorted_query, packed).unflatten(2, (g, rows)).flatten(1, 2)
        if self.centred:
            scores = scores + offset_scores(query, self.transform_query(packed["offset"]), packed)
        if self.pivots:
            scores = outlier_scores(scores, query, packed, self.transform_query(packed["outlier"]))
        return scores

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        if not self.pivots:
            return super().weighted_values(probabilities, packed)
        rest, kept = split_probabilities(probabilities, packed)
        return super().weighted_values(rest, packed) + kept @ rotate(packed["outlier"])


@lru_cache(maxsize=32)
def _head_rotations(heads: int, group: int, dim: int, device: torch.device) -> torch.Tensor:
    """float32 ``[heads, dim, group * dim]``: from one head's queries to the rotated channels of its group of heads."""
    matrix = hadamard_matrix(group * dim, device).view(group * dim, group, dim).permute(1, 2, 0)
    return matrix.repeat(heads // group, 1, 1).contiguous()
