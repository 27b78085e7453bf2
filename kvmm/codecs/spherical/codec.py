"""Spherical KV: sub-vectors as lengths and directions, and the product codes next to them.

A key is cut into groups of ``g`` neighbouring channels. *Angle codes* keep the length of each group in 8 bits and the
index of the unit codeword nearest to its direction; *product codes* keep only the index of the nearest codeword, which
has a length of its own. Keys meet a query through a table of its products with the codewords, values through sums of
probabilities by codeword (:mod:`kvmm.kernels.angle`); neither is rebuilt. Nothing is rotated first: directions of
neighbouring channels are what the codebooks know.

``kvmm calibrate`` fits codebooks to each (layer, KV head, group) by k-means; they belong to the model, as its weights
do, and their bytes are not the cache's. Without a calibration file one codebook of isotropic directions serves all
groups.

Stored tensors: ``codes`` uint8 ``[B, H, P, N * index_bits / 8, J]``, one plane a power of two in ``index_bits``;
``radius`` uint8 ``[B, H, P, N, J]`` and its largest value ``scale`` ``[B, H, P]`` (angle codes); ``mean``
``[B, H, G, D]`` of a span, subtracted first, without which a model's key bias would be all that the directions see;
``deviation`` ``[B, H, G, D or 1]`` (product codes), of a channel, or of the whole vector for a fitted codebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from kvmm.calibration.data import Calibration, SiteSamples
from kvmm.codecs.base import Codec, EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.spec import CodecSpec, Side, Site, spec
from kvmm.codecs.spherical.books import fit_books, universal_book
from kvmm.codecs.spherical.rates import (
    HIGH,
    LOW,
    LOWER,
    PRODUCT1,
    PRODUCT2,
    RATES,
    check_factors,
    divisor,
    pack_indices,
    rate_of,
    unpack_indices,
)
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields
from kvmm.kernels.angle import mix_histogram, nearest, reconstruct, scores_lut
from kvmm.kernels.angle.format import LENGTHS, AngleFormat
from kvmm.kernels.quantize import DensePages, Pages, cut_pages
from kvmm.modality import IMAGE, VIDEO

_SHIFT = 0.25  # how far, in variances of its own, the mean of later tokens may be from the stored one
_SPREAD = 2.0  # by what factor their deviation may differ
_books: WeakKeyDictionary[Calibration, dict[tuple, torch.Tensor | None]] = WeakKeyDictionary()


class Spherical(Codec):
    """Angle codes and product codes.

    ``bits`` names the rate, in bits a channel: 0.875 (the paper's high tier), 0.75 (mid) and 0.34375 (low) are angle
    codes, 2 and 1 product codes of 256 codewords for 4 and 8 channels. Where a group's size does not divide the head
    dimension the nearest divisor takes its place, and the bits change accordingly.

    Options:
        group, index_bits: another code, of ``2 ** index_bits`` codewords for ``group`` channels, which makes ``m = D /
            group`` groups a key; ``bits`` must say what that makes. Each tier of a policy has its own, so ``m(b)`` is
            open.
        code: what that code is, ``product`` or ``angle`` (with a length of 8 bits).
        gain: factor of the keys' deviation from their mean, as a query meets it. A codeword is never longer than its
            projection says, so logits come out short; a factor above 1 undoes that. Values have none.
        weights: ``w^(j)``, the same for each group, ``m`` factors; None for 1.
        radius: ``norm`` (the length of the group, the paper's) or ``projection`` (its length along the codeword, which
            is closest in squares, but shortens all logits and so flattens attention: for comparison only).
        reconstruct: True reads keys by rebuilding them, for comparison with the tables.
    """

    name = "spherical"
    bits = tuple(RATES)
    pages_stand_alone = True
    tiled: ClassVar[bool] = True  # whether there is a kernel for its angle codes
    stored: ClassVar[Mapping[str, Stored]] = dict.fromkeys(("mean", "deviation"), Stored("group"))
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "group": (None,),
        "index_bits": (None, 1, 2, 3, 4, 5, 6, 7, 8),
        "code": ("product", "angle"),
        "gain": (1.0,),
        "weights": (None,),
        "radius": ("norm", "projection"),
        "reconstruct": (False, True),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.rate = rate_of(spec)
        self.reconstruct = self.option("reconstruct")
        self._books: dict[tuple[int, torch.device], torch.Tensor] = {}

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        rate = rate_of(spec)
        if rate is None:
            super().check(spec)
            raise KVMMError("Codec spherical: group and index_bits come together, the group at least 2 channels.")
        super().check(CodecSpec(spec.codec, next(iter(RATES)), spec.group_size, spec.options))
        if spec.bits != rate.bits:
            raise KVMMError(
                f"Codec spherical: groups of {rate.group} with {rate.index_bits} bits take {rate.bits} bits."
            )
        check_factors(spec)

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        weights, groups = spec.option("weights"), head_dim // divisor(head_dim, rate_of(spec).group)
        if weights is not None and len(weights) != groups:
            raise KVMMError(f"Codec spherical: weights has {len(weights)} factors, keys have {groups} groups here.")

    @classmethod
    def matrix_specs(cls) -> list[CodecSpec]:
        """The specs that the shared tests run: a rate of each kind, and a table against the rebuilt keys."""
        return [
            spec("spherical", HIGH.bits),
            spec("spherical", LOW.bits, radius="projection"),
            spec("spherical", PRODUCT2.bits),
            spec("spherical", PRODUCT1.bits, reconstruct=True),
        ]

    # -- codebooks --------------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, samples: SiteSamples) -> dict[str, torch.Tensor]:
        """Codebooks of one site; see :func:`kvmm.codecs.spherical.books.fit_books`."""
        return fit_books(samples)

    @classmethod
    def check_fit(
        cls, tensors: Mapping[str, torch.Tensor], side: str, heads: int | str, dim: int | str, where: str
    ) -> None:
        for rate in RATES.values():
            size: int | str = "group" if isinstance(dim, str) else divisor(dim, rate.group)
            groups: int | str = "groups" if isinstance(dim, str) else dim // size
            fitted = f"{rate.name}.words" in tensors or f"{rate.name}.scale" in tensors
            fields = {
                f"{rate.name}.words": Field(torch.int8, (heads, groups, 2**rate.index_bits, size), required=fitted),
                f"{rate.name}.scale": Field(torch.float32, (heads, groups), required=fitted),
            }
            check_fields(tensors, fields, where, closed=False)

    def fitted(self, dim: int, device: torch.device) -> torch.Tensor | None:
        """float32 ``[H_kv, J, K, g]``, the codebooks of the calibration, or None if it has none for this site."""
        calibration = self.site.calibration
        if calibration is None or self.spec.option("group") is not None:
            return None
        site = (self.site.layer, self.side, self.site.modality)
        known = _books.setdefault(calibration, {})
        key = (*site, self.rate, device)
        if key not in known:
            tensors = calibration.site(self.name, *site)
            if not tensors and self.site.modality == VIDEO:  # frames are images
                tensors = calibration.site(self.name, self.site.layer, self.side, IMAGE)
            words, scale = (tensors.get(f"{self.rate.name}.{part}") for part in ("words", "scale"))
            if words is not None:
                words = calibration.own(words.float() * scale[..., None, None].float()).to(device)
            known[key] = words
        book = known[key]
        return book if book is not None and book.shape[1] * book.shape[3] == dim else None

    def codebook(self, dim: int, device: torch.device) -> torch.Tensor:
        """float32 ``[H_kv or 1, J or 1, K, g]``, what a query meets; do not modify, it is shared."""
        words = self.codewords(dim, device)
        if self.side == "value" or (self.option("gain") == 1 and self.option("weights") is None):
            return words
        if (dim, device) not in self._books:
            factor = torch.tensor(self.option("weights") or (1.0,), device=device) * self.option("gain")
            self._books[dim, device] = words * factor.view(1, -1, 1, 1)
        return self._books[dim, device]

    def codewords(self, dim: int, device: torch.device) -> torch.Tensor:
        """float32 ``[H_kv or 1, J or 1, K, g]``, what vectors are encoded with; do not modify, it is shared."""
        book = self.fitted(dim, device)
        if book is None:
            book = universal_book(divisor(dim, self.rate.group), self.rate.index_bits, self.rate.radius, str(device))
        return book

    # -- encode and decode ------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        valid = context.valid
        if valid is not None:  # a sequence without a token of its own here takes the copies that fill its slots
            valid = valid | ~valid.any(1, keepdim=True)
        pages = cut_pages(x, context.page_size, valid)
        span, reused = self._span(pages, context.previous)
        tensors = self._encode_span(pages, {name: t[:, :, -1:] for name, t in span.items()})
        if reused:  # nothing new: pages point to the last span there is
            span = {name: t[:, :, :0] for name, t in span.items()}
        group = torch.full((pages.shape[2],), -1 if reused else 0, dtype=torch.int32, device=x.device)
        return Packed(tensors | span, context.page_size, group)

    def _span(self, pages: Pages, previous: Packed | None) -> tuple[dict[str, torch.Tensor], bool]:
        """The statistics ``[B, H, 1, D or 1]`` of new pages, or those stored if they still fit."""
        limit = torch.finfo(torch.float16).max
        mean, variance = (found.unsqueeze(2) for found in pages.moments())  # [B, H, 1, D]
        span = {"mean": mean.clamp(-limit, limit).half()}
        if not self.rate.radius:
            if self.fitted(pages.shape[-1], pages.device) is not None:
                variance = variance.mean(-1, keepdim=True)
            span["deviation"] = variance.sqrt().clamp_max(limit).half()
        if previous is None or previous["mean"].shape[2] == 0:
            return span, False
        old = {name: previous[name][:, :, -1:] for name in span}
        total = variance.sum(-1) * (pages.shape[-1] // variance.shape[-1])
        fits = (old["mean"].float() - mean).square().sum(-1) <= _SHIFT * total
        if "deviation" in span:
            before, now = (s["deviation"].float().square().sum(-1) for s in (old, span))
            fits &= (now <= before * _SPREAD**2) & (before <= now * _SPREAD**2)
        return (old, True) if bool(fits.all()) else (span, False)

    def _encode_span(self, pages: Pages, span: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Page tensors of new pages with statistics ``[B, H, 1, D or 1]``: by a kernel, or some pages at a time."""
        if self.tiled and self.rate.radius and self.option("radius") == "norm" and not isinstance(pages, DensePages):
            from kvmm.kernels.angle import encode  # needs Triton, which not every platform has

            if encode.fits(pages.page_size, self.rate.index_bits):
                book = self.codewords(pages.shape[-1], pages.device)
                return encode.encode_pages(pages.x, pages.page_size, span["mean"], book, self.rate.index_bits)
        read = {name: t.unsqueeze(2) for name, t in span.items()}
        parts = [self._encode_pages(part.values, read) for part in pages.parts()]
        return parts[0] if len(parts) == 1 else {n: torch.cat([part[n] for part in parts], 2) for n in parts[0]}

    def _encode_pages(
        self, pages: torch.Tensor, span: Mapping[str, torch.Tensor], heads: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Page tensors of pages ``[B, H, P, N, D]`` with statistics that broadcast to them; ``heads`` as elsewhere."""
        x = pages - span["mean"].float()
        if "deviation" in span:
            deviation = span["deviation"].float()
            x = torch.where(deviation > 0, x / deviation, 0.0)
        book = self.codewords(x.shape[-1], x.device)
        if heads is not None and book.shape[0] > 1:
            book = book[heads]
        split = x.unflatten(-1, (-1, book.shape[-1]))  # [B, H, P, N, J, g]
        index = self._nearest(split, book)
        tensors = {}
        if self.rate.radius:
            if self.option("radius") == "norm":
                radius = torch.linalg.vector_norm(split, dim=-1)
            else:
                along = split * self._look_up(book, index)
                radius = along.sum(-1).clamp_min_(0)
            scale = radius.amax((3, 4)).clamp_max(torch.finfo(torch.float16).max).half()
            step = scale.float()[..., None, None] / LENGTHS
            steps = torch.where(step > 0, radius / step, 0.0).round_().clamp_(0, LENGTHS)
            tensors |= {"radius": steps.to(torch.uint8), "scale": scale}
        return {"codes": pack_indices(index, self.rate.index_bits), **tensors}

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        pages, spans = (store.batch, store.heads, store.pages), (store.batch, store.heads, "groups")
        groups = store.dim // divisor(store.dim, self.rate.group)
        fields = {
            "page_group": Field(torch.int32, (store.pages,), 0, "groups"),
            "codes": Field(torch.uint8, (*pages, store.page_size * self.rate.index_bits // 8, groups)),
            "mean": Field(torch.float16, (*spans, store.dim)),
        }
        if self.rate.radius:
            fields["radius"] = Field(torch.uint8, (*pages, store.page_size, groups))
            fields["scale"] = Field(torch.float16, pages)
        else:
            fitted = self.fitted(store.dim, store.device) is not None
            fields["deviation"] = Field(torch.float16, (*spans, 1 if fitted else store.dim))
        return fields

    @staticmethod
    def _nearest(split: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
        """Indices ``[B, H, P, N, J]`` of sub-vectors ``[B, H, P, N, J, g]``."""
        if book.shape[:2] == (1, 1):
            return nearest(split.reshape(1, -1, split.shape[-1]), book[0]).view(split.shape[:-1])
        book = book.expand(split.shape[1], -1, -1, -1)
        by_book = split.permute(1, 4, 0, 2, 3, 5)  # [H, J, B, P, N, g]
        index = nearest(by_book.reshape(book[..., 0, 0].numel(), -1, split.shape[-1]), book.flatten(0, 1))
        return index.view(by_book.shape[:-1]).permute(2, 0, 3, 4, 1)

    def _read(self, packed: Packed) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Indices uint8 ``[B, H, P, N, J]`` and lengths float32 of the same shape, or None."""
        index = unpack_indices(packed["codes"], self.rate.index_bits)
        if not self.rate.radius:
            return index, None
        return index, packed["radius"].float().mul_(packed["scale"].float()[..., None, None] / LENGTHS)

    def decode(self, packed: Packed) -> torch.Tensor:
        return self._decode(packed, None)

    def _decode(self, packed: Packed, heads: torch.Tensor | None, source: bool = False) -> torch.Tensor:
        """``source`` leaves out gain and weights."""
        index, radius = self._read(packed)
        mean, deviation = self._by_page(packed)
        book = (self.codewords if source else self.codebook)(mean.shape[-1], index.device)
        x = self._look_up(book if heads is None or book.shape[0] == 1 else book[heads], index)
        if radius is not None:
            x = x * radius.unsqueeze(-1)
        x = x.flatten(-2)
        if deviation is not None:
            x = x * deviation.unsqueeze(3)
        return (x + mean.unsqueeze(3)).flatten(2, 3)

    @staticmethod
    def _look_up(book: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Codewords ``[B, H, P, N, J, g]`` of indices ``[B, H, P, N, J]``."""
        batch = index.shape[0]
        vectors = reconstruct(index.flatten(0, 1).flatten(1, 2), _for_batch(book, batch))
        return vectors.view(*index.shape, book.shape[-1])

    @staticmethod
    def _by_page(packed: Packed) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``mean`` and ``deviation`` float32 ``[B, H, P, D or 1]`` of every page."""
        return tuple(
            None if t is None else t.index_select(2, packed.page_group).float()
            for t in (packed["mean"], packed.tensors.get("deviation"))
        )

    # -- attention --------------------------------------------------------------------------------------------------

    def packed_format(self, packed: Packed) -> AngleFormat | None:
        if self.side == "value" or not self.rate.radius or self.reconstruct:
            return None
        tensors = [packed[name] for name in ("codes", "radius", "scale", "mean")]
        book = self.codebook(tensors[-1].shape[-1], tensors[-1].device)
        return AngleFormat(*tensors, packed.page_group, book, self.rate.index_bits, packed.page_size)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        return self._scores(query, packed, None)

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        return self._mix(probabilities, packed, None, 0)

    def page_scores(self, query: torch.Tensor, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        return self._scores(query, packed, heads)

    def page_weighted_values(
        self, probabilities: torch.Tensor, packed: Packed, heads: torch.Tensor, num_heads: int
    ) -> torch.Tensor:
        return self._mix(probabilities, packed, heads, num_heads)

    def page_decode(self, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        return self._decode(packed, heads)

    def page_source(self, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        return self._decode(packed, heads, source=True)

    @property
    def inherits(self) -> tuple[str, ...]:
        return ("mean",) if self.rate.radius else ("mean", "deviation")

    def page_recode(self, x: torch.Tensor, packed: Packed, heads: torch.Tensor) -> dict[str, torch.Tensor]:
        span = {n: packed[n].index_select(2, packed.page_group).unsqueeze(3) for n in self.inherits}
        return self._encode_pages(x.unflatten(2, (-1, packed.page_size)), span, heads)

    def lower_tier(self) -> Spherical | None:
        lower = LOWER.get(self.rate)
        if lower is None or self.spec.option("group") is not None:
            return None
        return Spherical(replace(self.spec, bits=lower.bits), self.side, self.site)

    def _scores(self, query: torch.Tensor, packed: Packed, heads: torch.Tensor | None) -> torch.Tensor:
        """``heads`` names the head of each of the packed ones, or None if they are the query's."""
        own = query if heads is None else query.index_select(1, heads)
        if self.reconstruct:
            return own @ self._decode(packed, heads).transpose(-1, -2)
        if heads is None and self.rate.radius and query.is_cuda:
            return self._scores_in_place(query, packed)
        index, radius = self._read(packed)
        mean, deviation = self._by_page(packed)
        sets, codes = self._sets(packed, index, radius, heads)
        tables = query
        if deviation is not None:
            tables = (own.unsqueeze(2) * packed["deviation"].float().unsqueeze(3)).flatten(1, 2)
        scores = scores_lut(tables.flatten(0, 1), *codes, sets)  # runs of pages, or of all tokens of a head
        batch, count, pages, tokens, _ = index.shape
        scores = scores.view(batch, count, -1, query.shape[2], scores.shape[-1]).transpose(2, 3).flatten(3)
        offset = own @ mean.transpose(-1, -2)  # [B, H, Q, P]
        return scores.unflatten(-1, (pages, tokens)).add(offset.unsqueeze(-1)).flatten(-2)

    def _scores_in_place(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The scores of angle codes by a kernel that reads them as they are packed."""
        from kvmm.kernels.angle.pages import page_scores  # needs Triton, which not every platform has

        offset = (query.float() @ packed["mean"].float().transpose(-1, -2)).index_select(-1, packed.page_group)
        book = self.codebook(query.shape[-1], query.device)
        tensors = (packed[name] for name in ("codes", "radius", "scale"))
        return page_scores(query, *tensors, book, offset, self.rate.index_bits)

    def _mix(
        self, probabilities: torch.Tensor, packed: Packed, heads: torch.Tensor | None, num_heads: int
    ) -> torch.Tensor:
        index, radius = self._read(packed)
        mean, deviation = self._by_page(packed)
        sets, (index_runs, book, radius_runs) = self._sets(packed, index, radius, heads)
        batch, count, pages, tokens, _ = index.shape
        runs = probabilities.unflatten(-1, (-1, index_runs.shape[1])).transpose(2, 3).flatten(0, 2)
        by_page = probabilities.unflatten(-1, (pages, tokens)).sum(-1)
        offset = by_page @ mean  # [B, H, Q, D]
        spans = 1 if deviation is None else packed["deviation"].shape[2]
        joined = heads is not None and deviation is None  # runs of a head are added up at once
        num_sets = num_heads if joined else batch * count * spans
        mixed = mix_histogram(runs, index_runs, book, radius_runs, sets, num_sets)
        mixed = mixed.view(batch, num_heads if joined else count, -1, *mixed.shape[1:])
        if deviation is not None:
            mixed = mixed * packed["deviation"].float().unsqueeze(3)
        mixed = mixed.sum(2)
        if heads is None:
            return mixed + offset
        if joined:
            return mixed.index_add(1, heads, offset)
        return mixed.new_zeros(batch, num_heads, *mixed.shape[2:]).index_add_(1, heads, mixed + offset)

    def _sets(
        self, packed: Packed, index: torch.Tensor, radius: torch.Tensor | None, heads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """What the kernels take: the set of each run, and ``(index, codebook, radius)`` in runs.

        Tables of angle codes are a head's; those of product codes hold the deviations and are a span's.
        """
        batch, count = index.shape[:2]
        book = self.codebook(packed["mean"].shape[-1], index.device)
        if self.rate.radius:
            runs = (batch * count, -1, index.shape[-1])
            book = book if heads is not None else _for_batch(book, batch)
            return heads, (index.reshape(runs), book, radius.reshape(runs))
        if heads is not None and book.shape[0] > 1:
            book = book[heads]
        spans = packed["deviation"].shape[2]
        book = _for_batch(book, batch)
        if spans == 1:
            return None, (index.flatten(0, 1).flatten(1, 2), book, None)
        book = book if book.shape[0] == 1 else book.repeat_interleave(spans, 0)
        first = torch.arange(0, batch * count * spans, spans, device=index.device)
        sets = (first.unsqueeze(1) + packed.page_group).flatten()
        return sets, (index.flatten(0, 2), book, None)


def _for_batch(book: torch.Tensor, batch: int) -> torch.Tensor:
    """Codebooks of every sequence and head: ``[B * H, J, K, g]``, or the one that serves all."""
    return book if book.shape[0] == 1 or batch == 1 else book.repeat(batch, 1, 1, 1)
